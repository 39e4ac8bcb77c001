-- A mutex whose key holds the token alone, as redis-py's Lock and others write it. This is what differs from `mutex`.
-- Other libraries free the key without notifying the queue, so waiters re-check every 0.1 to 0.5 s (W6).
-- Needs the names: holder, fence; and `mutex`.

local fenced = false -- P5, P10: a value that begins with the token and a space is that of another program

local grant_with_fence = grant
local function grant(token, ttl_ms)
  local number, text = grant_with_fence(token, ttl_ms)
  redis.call('SET', holder, token, 'PX', ttl_ms)
  return number, text
end

-- Not for this kind: the value to overwrite need not be that of the newest grant.
local function hand_to_own_next() end

-- The key has no fencing token here. The last one is that of the holder, if one of this library holds the mutex.
local function held_by()
  local value = redis.call('GET', holder)
  if value then
    return value, tonumber(redis.call('GET', fence) or 0), ''
  end
end

-- Not known: -1 if it is held, -2 if not.
local function busy_for()
  return redis.call('EXISTS', holder) - 2
end
