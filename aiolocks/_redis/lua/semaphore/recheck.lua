-- Say how a session's waiters stand, keep them in the queue, and mend what has got stuck. Never creates a waiter.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   limit, fence, weight, ttl, used, line; and token -> `permits fence`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of this session's waiters -> ticket
-- ARGV[1]  session   bytes  who asks
-- ARGV[2]  channels  bytes  start of every session's channel
-- ARGV[3]  life_ms   int    how long the session is taken for alive without a re-check
-- ARGV[4…] entries   bytes  the waiters it believes to have
-- returns  {subscribers, ms until a lease can end, last fencing token, 1 if the session had been passed over, answers,
--          grants for this session, limit in force}; an answer is a ticket, or minus the fencing token of a grant, or 0
--          for a waiter that must ask anew: it is not known here, or can never be granted, or nothing is known of a limit
-- uses     clock, digits
local asking = ''
-- uses     permits, semaphore, leases, room, queue, leave, hand_over
redis.call('PEXPIRE', waiters, life_ms) -- first a write that is allowed at the memory limit: then so are all others
-- uses     settle
local in_queue = redis.call('ZRANK', queue, session)
local passed_over = 0
local answers = {}
local waiting = false
for at, waiter in ipairs(entries) do
  local entry = waiter .. ROOM
  local token, ttl_ms, permits = string.match(entry, '^(%S+) (%d+) (%d+)')
  local ticket = redis.call('ZSCORE', waiters, entry)
  local number = fence_of(token)
  if number then
    extend(token, ttl_ms) -- the notice of this grant was lost
    leave(entry)
    answers[at] = -number
  elseif ticket and tonumber(permits) > limit_in_force and limit_in_force > 0 then
    leave(entry) -- it will ask anew, and be refused
    answers[at] = 0
  elseif ticket then
    local declares = limit_in_force == 0 and not waiting -- the limit was forgotten, and the first to ask brings it back
    waiting = true
    answers[at] = declares and 0 or tonumber(ticket)
  else
    answers[at] = 0
  end
end
if waiting then
  passed_over = in_queue and 0 or 1
  keep_queue()
end
local before = newest
local mine = {}
hand_over(mine)
return { subscribers(session), busy_for(), before, passed_over, answers, mine, limit_in_force }
