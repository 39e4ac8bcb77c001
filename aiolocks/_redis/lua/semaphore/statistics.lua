-- Count permits, holders and waiters.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue    zset  session -> ticket of its first waiter
-- ARGV[1]  first    int   place of the first session whose waiters are counted, from 0
-- returns  {permits in use, holders, waiters of those sessions, last fencing token, limit or 0 when none is in force,
--          place to go on from, or 0; or -1 when the first was asked for and leases that ran out still count: ask again}
local asking = ''
-- uses     numbers, leases, semaphore, queue
settle()
local waiting, next_place = count_waiting()
return { used, members, waiting, newest, limit_in_force, backlog and first == '0' and -1 or next_place }
