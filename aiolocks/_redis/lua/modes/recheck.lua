-- Say how a session's waiters stand, keep them in the queue, and mend what has got stuck. Never creates a waiter.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of this session's waiters -> ticket
-- ARGV[1]  session   bytes  who asks
-- ARGV[2]  channels  bytes  start of every session's channel
-- ARGV[3]  life_ms   int    how long the session is taken for alive without a re-check
-- ARGV[4…] entries   bytes  the waiters it believes to have
-- returns  {subscribers, ms until a lease can end, last fencing token, 1 if the session had been passed over, answers,
--          grants for this session}; an answer is a ticket, or minus the fencing token of a grant, or 0 for a waiter
--          that is not known here
-- Where something is free, and the server too young for the first in line, its ms stand in place of the lease's.
local asking = ''
-- uses     numbers, leases, modes, queue, hand_over
redis.call('PEXPIRE', waiters, life_ms) -- first a write that is allowed at the memory limit: then so are all others
settle()
local answers, passed_over = recheck(fence_of)
local before = newest
local grants = {}
hand_over(grants)
return { subscribers(session), not_before(), before, passed_over, answers, grants }
