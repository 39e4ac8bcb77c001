-- A newcomer in the queue.
-- Needs the names: queue, waiters, session, keep_queue, next_ticket.

-- Puts the waiter in line; returns its ticket, and how long the lease in the way lasts. One that comes back keeps its
-- old ticket, unless a clock that stepped back has made that one worse than a new one.
-- *others*: there is a queue, and a line of this session; so it is in its place, if it is in the queue.
local function enqueue(entry, old_ticket, others)
  local ticket, text = next_ticket()
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
