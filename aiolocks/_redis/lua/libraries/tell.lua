-- Handing over to a waiter of another session, which has to be told.
-- Needs the names: queue, channels, base, subscribers, move_on; and from the primitive: grant, revoke.

local function tell(other, token, number, terms)
  local message = token .. ' ' .. number .. ' ' .. terms .. ' ' .. base
  local reply = redis.pcall('PUBLISH', channels .. other, message)
  return not (type(reply) == 'table' and reply.err)
end

-- Gives a waiter of another session what it waits for, and says whether it could be told; if not, nothing is given.
local function hand_to(head, line, entry, next_entry, token, ttl_ms, permits, deaf)
  if not deaf and subscribers(head) == 0 then
    return false
  end
  local life_left = not next_entry and redis.call('PTTL', line)
  redis.call('ZREM', line, entry)
  local _, text = grant(token, deaf and math.min(2 * deaf, tonumber(ttl_ms)) or ttl_ms, permits)
  if deaf or tell(head, token, text, ttl_ms) then
    move_on(head, line, next_entry)
    return true
  end
  revoke(token)
  redis.call('ZADD', line, redis.call('ZSCORE', queue, head), entry) -- the session still stands at its place
  if life_left then
    redis.call('PEXPIRE', line, life_left)
  end
  return false
end
