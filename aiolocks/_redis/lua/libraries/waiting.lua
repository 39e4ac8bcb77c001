-- How many wait, counted in parts: each session costs a command, and a script keeps all others from the server.
-- Needs the names: queue, first.

local MOST_COUNTED = 500 -- sessions

-- Returns how many wait in the sessions from the place *first* on; and the place to go on from, or 0 after the last.
local function count_waiting()
  local from = tonumber(first)
  local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
  local sessions = redis.call('ZRANGE', queue, from, from + MOST_COUNTED - 1)
  local waiting = 0
  for _, session in ipairs(sessions) do
    waiting = waiting + redis.call('ZCARD', lines .. session)
  end
  return waiting, #sessions == MOST_COUNTED and from + MOST_COUNTED or 0
end
