-- A mutex whose key holds the token alone, as redis-py's Lock and others write it: what differs from `mutex`, behind which
-- it stands. Others take the key and free it without a word to the queue; so when it will be free is not known, and
-- waiters ask again every 0.1 to 0.5 s.
-- Needs the names: holder, fence; and `mutex`.

local grant_with_fence = grant
local function grant(token, ttl_ms)
  local number, text = grant_with_fence(token, ttl_ms)
  redis.call('SET', holder, token, 'PX', ttl_ms)
  return number, text
end

-- Not for this kind: what it overwrites is not known to be the newest grant's.
local function hand_on() end

-- Nothing stands beside a token here. The last fencing token is its own, if it is one of this library's.
local function held_by()
  local value = redis.call('GET', holder)
  if value then
    return value, tonumber(redis.call('GET', fence) or 0), ''
  end
end

-- Not known.
local function busy_for()
  return redis.call('EXISTS', holder) - 2
end
