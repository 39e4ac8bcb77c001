-- Report the state of a session's waiters, keep them in the queue, and hand over. Never creates a waiter.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of each waiter of this session -> ticket
-- ARGV[1]  address   bytes  the session that asks; see `libraries/address`
-- ARGV[2…] entries   bytes  the waiters that the session believes to have
-- returns  as `lock/recheck`
local asking = ''
-- uses     numbers, address, leases, modes, books, queue, hand_over
redis.call('PEXPIRE', waiters, life_ms) -- W9: this write is allowed at the memory limit, and then all are
settle()
local answers, passed_over = recheck(fence_of)
local before = newest
local grants = {}
hand_over(grants)
return { subscribers(session), not_before(), before, passed_over, answers, grants }
