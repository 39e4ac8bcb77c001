-- A newcomer in the queue.
-- Needs the names: queue, waiters, session, keep_queue.

-- The ticket of a newcomer where the clock is of no use: it has stepped back, or two came within a microsecond.
local function behind_all()
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
  local own_last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')[2] or 0
  local ticket = math.max(tonumber(last), tonumber(own_last)) + 1
  return ticket, string.format('%.0f', ticket)
end

-- Puts the waiter in line; returns its ticket, and how long the lease in the way lasts. One that comes back keeps its
-- old ticket, unless a clock that stepped back has made that one worse than a new one.
local function enqueue(entry, old_ticket)
  local ticket, text = micros()
  if redis.call('ZCOUNT', queue, text, 'inf') > 0 or redis.call('ZCOUNT', waiters, text, 'inf') > 0 then
    ticket, text = behind_all()
  end
  local old = tonumber(old_ticket)
  if old > 0 and old < ticket then
    ticket, text = old, old_ticket
  end
  local placed = redis.call('ZRANK', queue, session) and redis.call('EXISTS', waiters) == 1 and old <= 0
  if redis.pcall('ZADD', waiters, 'NX', text, entry) ~= 1 then -- it is there already, or nothing can be added
    text = redis.call('ZSCORE', waiters, entry) or redis.call('ZADD', waiters, 'NX', text, entry)
    return tonumber(text), keep_queue()
  end
  return ticket, keep_queue(placed)
end
