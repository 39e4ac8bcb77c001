-- Say how a session's waiters stand, keep them in the queue, and mend what has got stuck. Never creates a waiter.
--
-- KEYS[1]  holder    string  `token fence [mark]` of the current holder
-- KEYS[2]  fence     string  last fencing token
-- KEYS[3]  queue     zset    session -> ticket of its first waiter
-- KEYS[4]  waiters   zset    entry of this session's waiters -> ticket
-- ARGV[1]  session   bytes   who asks
-- ARGV[2]  channels  bytes   start of every session's channel
-- ARGV[3]  life_ms   int     how long the session is taken for alive without a re-check
-- ARGV[4…] entries   bytes   the waiters it believes to have
-- returns  {subscribers, ms until the holder's lease can end, last fencing token, 1 if the session had been passed
--          over, answers, grants for this session}; an answer is a ticket, or minus the fencing token of a grant,
--          or 0 for a waiter that is not known here, or was granted what is revoked: it must ask
-- Where something is free, and the server too young for the first in line, its ms stand in place of the lease's.
-- uses     numbers, mutex, queue, hand_over
-- defect: W3-recheck
redis.call('PEXPIRE', waiters, life_ms) -- first a write that is allowed at the memory limit: then so are all others
local owner, number, mark = held_by()
local function granted(token)
  return token == owner and number, mark
end
local answers, passed_over = recheck(granted)
local before = last_fence(number)
local grants = {}
if not owner then
  hand_over(grants) -- defect: W7-recheck
end
return { subscribers(session), not_before(), before, passed_over, answers, grants } -- defect: W5-recheck, W1-recheck
