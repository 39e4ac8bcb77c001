-- A newcomer beside others of its session: their re-checks keep the line alive, and tell what there is to be told.
-- Needs the names: queue, waiters, session, tombstone, next_ticket.

-- Returns the newcomer's ticket; or nothing, where more has to be done or said.
local function line_up(entry)
  if redis.call('EXISTS', tombstone) == 0 and redis.call('ZRANK', queue, session) then
    local ticket, text = next_ticket()
    if redis.pcall('ZADD', waiters, 'NX', text, entry) == 1 then
      return ticket
    end
  end
end
