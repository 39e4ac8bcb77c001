-- The place of a newcomer in the queue.
-- Needs the names: queue, waiters.

-- Returns a ticket behind all others', and the same as text.
local function next_ticket()
  local ticket, text = micros()
  if redis.call('ZCOUNT', queue, text, 'inf') > 0 or redis.call('ZCOUNT', waiters, text, 'inf') > 0 then
    -- The clock is of no use: it has stepped back, or two came within a microsecond.
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
    local own_last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')[2] or 0
    ticket = math.max(tonumber(last), tonumber(own_last)) + 1
    text = string.format('%.0f', ticket)
  end
  return ticket, text
end
