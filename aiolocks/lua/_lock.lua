-- The rest of a mutex: who holds it, and for how long.
-- Needs the names: holder, fence.

-- Returns the holder's token and fencing token, or nothing.
local function held_by()
  local value = redis.call('GET', holder)
  if value then
    local token, number = string.match(value, '^(%S+) (%d+)$')
    return token or value, tonumber(number) or 0 -- other libraries put any text of their own there
  end
end

-- The last fencing token; it stands beside the holder's, if that one is ours.
local function last_fence(number)
  return number and number > 0 and number or tonumber(redis.call('GET', fence) or 0)
end

-- Once it is granted there is nothing left to hand over.
local exclusive = true

local function revoke(token)
  redis.call('DEL', holder)
end

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(ttl_ms)
  if redis.call('PTTL', holder) < tonumber(ttl_ms) then
    redis.call('PEXPIRE', holder, ttl_ms)
  end
end

-- How long the lease in the way lasts unless renewed, in ms; -1 when it has no end, -2 when there is none.
local function busy_for()
  return redis.call('PTTL', holder)
end

-- Can this many permits be had now? Whoever hands a mutex over has found it free.
local function admits(permits)
  return 'yes'
end
