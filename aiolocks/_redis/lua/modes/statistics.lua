-- Count holders and waiters, and report which modes can be had.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue    zset  session -> ticket of its first waiter
-- ARGV[1]  first    int   place of the first session whose waiters are counted, and of the first lease, from 0
-- returns  as `semaphore/statistics`, where each lease has one permit; and for each mode 1 if it fits
local asking = ''
-- uses     numbers, leases, modes, books, queue
settle()
local waiting, next_session = count_waiting()
local kept, kept_until_ms, next_lease = count_kept()
local next_place = backlog and first == '0' and -1 or math.max(next_session, next_lease)
local free = {}
for mode = 1, EXCLUSIVE do
  free[mode] = can_grant(mode, '') == 'yes' and 1 or 0
end
return { members, members, waiting, newest, 0, next_place, kept, kept_until_ms, free }
