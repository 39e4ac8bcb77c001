-- Report the state of a session's waiters, keep them in the queue, and hand over. Never creates a waiter.
--
-- KEYS[1]  holder    string  `token fence [mark]` of the current holder
-- KEYS[2]  fence     string  last fencing token
-- KEYS[3]  queue     zset    session -> ticket of its first waiter
-- KEYS[4]  waiters   zset    entry of each waiter of this session -> ticket
-- ARGV[1]  address   bytes   the session that asks; see `libraries/address`
-- ARGV[2…] entries   bytes   the waiters that the session believes to have
-- returns  {subscribers, ms until the holder's lease can end, last fencing token, 1 if the session had been passed
--          over, answers, grants for this session}; an answer is a ticket, or minus the fencing token of a grant, or 0
--          for a waiter that must ask again: it is not known here, or its lease is revoked
-- If it is free, and the server too young for the first waiter, its ms replace those of the lease.
-- uses     numbers, address, mutex, queue, hand_over
-- defect: W3-recheck
redis.call('PEXPIRE', waiters, life_ms) -- W9: this write is allowed at the memory limit, and then all are
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
