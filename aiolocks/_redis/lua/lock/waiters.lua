-- Report who waits, for any kind of name. Changes nothing.
-- W21: in parts, because each session costs a command, and each waiter three fields of the reply.
--
-- KEYS[1]  queue   zset  session -> ticket of its first waiter
-- ARGV[1]  first   int   place of the first session to report, from 0
-- ARGV[2]  skip    int   how many of its waiters were reported before
-- returns  {place of the session to continue from, or -1; how many of its waiters to skip; µs by the server's clock;
--          and for each waiter, in one list, its token, its ticket, its permits}
-- uses     numbers
local MOST_TOLD = 500 -- maximum number of waiters, and of sessions
local place, skipped = tonumber(first), tonumber(skip)
local _, now = micros()
local answer = { -1, 0, now }
local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
local sessions = redis.call('ZRANGE', queue, place, place + MOST_TOLD - 1)
local room = MOST_TOLD
for _, session in ipairs(sessions) do
  local found = redis.call('ZRANGE', lines .. session, skipped, skipped + room - 1, 'WITHSCORES')
  for at = 1, #found, 2 do
    local token, permits = string.match(found[at], '^(%S+) %d+ (%d+)')
    local last = #answer
    answer[last + 1], answer[last + 2], answer[last + 3] = token, found[at + 1], permits
  end
  room = room - #found / 2
  if room == 0 then
    answer[1], answer[2] = place, skipped + #found / 2
    return answer
  end
  place, skipped = place + 1, 0
end
if #sessions == MOST_TOLD then
  answer[1] = place
end
return answer
