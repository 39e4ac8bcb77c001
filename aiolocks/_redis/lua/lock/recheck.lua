-- Say how a session's waiters stand, keep them in the queue, and mend what has got stuck. Never creates a waiter.
--
-- KEYS[1]  holder    string  `token fence` of the current holder
-- KEYS[2]  fence     string  last fencing token
-- KEYS[3]  queue     zset    session -> ticket of its first waiter
-- KEYS[4]  waiters   zset    entry of this session's waiters -> ticket
-- ARGV[1]  session   bytes   who asks
-- ARGV[2]  channels  bytes   start of every session's channel
-- ARGV[3]  life_ms   int     how long the session is taken for alive without a re-check
-- ARGV[4…] entries   bytes   the waiters it believes to have
-- returns  {subscribers, ms until the holder's lease can end, last fencing token, 1 if the session had been passed
--          over, answers, grants for this session}; an answer is a ticket, or minus the fencing token of a grant,
--          or 0 for a waiter that is not known here
-- uses     clock, fence, holder, extend, lock, mutex, room, queue, leave, hand_over
redis.call('PEXPIRE', waiters, life_ms) -- first a write that is allowed at the memory limit: then so are all others
local owner, number = held_by()
local in_queue = redis.call('ZRANK', queue, session)
local passed_over = 0
local answers = {}
local known = false
for at, waiter in ipairs(entries) do
  local entry = waiter .. ROOM
  local token, ttl_ms = string.match(entry, '^(%S+) (%d+)')
  local ticket = redis.call('ZSCORE', waiters, entry)
  if token == owner then
    extend(ttl_ms) -- the notice of this grant was lost
    leave(entry)
    answers[at] = -number
  elseif ticket then
    known = true
    answers[at] = tonumber(ticket)
  else
    answers[at] = 0
  end
end
if known then
  passed_over = in_queue and 0 or 1
  keep_queue()
end
local before = last_fence(number)
local mine = {}
if not owner then
  hand_over(mine)
end
return { subscribers(session), busy_for(), before, passed_over, answers, mine }
