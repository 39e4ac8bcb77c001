-- A newcomer in the queue.
-- Needs the names: queue, waiters, session, keep_queue.

-- Puts the waiter in line; returns its ticket, and how long the lease in the way lasts. One that comes back keeps its
-- old ticket, unless a clock that stepped back has made that one worse than a new one.
-- *others*: there is a queue, and a line of this session; so it is in its place, if it is in the queue.
local function enqueue(entry, old_ticket, others)
  local ticket, text = micros()
  if redis.call('ZCOUNT', queue, text, 'inf') > 0 or redis.call('ZCOUNT', waiters, text, 'inf') > 0 then
    -- The clock is of no use: it has stepped back, or two came within a microsecond.
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
    local own_last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')[2] or 0
    ticket = math.max(tonumber(last), tonumber(own_last)) + 1
    text = string.format('%.0f', ticket)
  end
  local newcomer = old_ticket == '0'
  if not newcomer and tonumber(old_ticket) < ticket then
    ticket, text = tonumber(old_ticket), old_ticket
  end
  local placed = others and newcomer and redis.call('ZRANK', queue, session)
  if redis.pcall('ZADD', waiters, 'NX', text, entry) ~= 1 then -- it is there already, or nothing can be added
    text = redis.call('ZSCORE', waiters, entry) or redis.call('ZADD', waiters, 'NX', text, entry)
    return tonumber(text), keep_queue()
  end
  return ticket, keep_queue(placed)
end
