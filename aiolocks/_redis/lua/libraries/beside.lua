-- A newcomer beside others of its session: their re-checks keep the line alive, and tell what there is to be told.
-- Needs the names: token, holder, queue, waiters, session, tombstone, next_ticket.

-- Returns the newcomer's ticket; or nothing, where more has to be done or said. A request that was long on its way may
-- find its own token holding the lock, by a later one, or buried.
local function line_up(entry)
  local value = redis.call('GET', holder)
  if not value or string.sub(value, 1, #token) == token or redis.call('EXISTS', tombstone) == 1 then
    return
  end
  if redis.call('ZRANK', queue, session) then
    local ticket, text = next_ticket()
    if redis.pcall('ZADD', waiters, 'NX', text, entry) == 1 then
      return ticket
    end
  end
end
