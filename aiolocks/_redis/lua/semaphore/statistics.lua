-- Count permits, holders and waiters.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue    zset  session -> ticket of its first waiter
-- ARGV[1]  first    int   place of the first session whose waiters are counted, and of the first lease, from 0
-- returns  {permits in use, leases, waiters of those sessions, last fencing token, limit or 0 when none is in force,
--          place to continue from, or 0; or -1 if the first was asked for and ended leases still count: ask again;
--          how many of those leases are cooling (W18), and when the last of these ends (ms), or 0;
--          for how many ms it is paused, or 0}. A pause (W25) counts neither as permits nor as a lease.
local asking = ''
-- uses     numbers, leases, semaphore, books, queue
settle()
local waiting, next_session = count_waiting()
local kept, kept_until_ms, next_lease = count_kept()
local next_place = backlog and first == '0' and -1 or math.max(next_session, next_lease)
local paused = redis.call('ZSCORE', holders, PAUSE)
if paused then
  used, members = math.max(used - ALL_PERMITS, 0), members - 1 -- W25 -- defect: W25-statistics
end
local paused_ms = math.max((paused or now_ms) - now_ms, 0)
return { used, members, waiting, newest, limit_in_force, next_place, kept, kept_until_ms, paused_ms }
