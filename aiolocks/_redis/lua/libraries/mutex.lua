-- A mutex: one key with `token fence` in it for as long as the lease lasts.
-- Needs the names: holder, fence; and `numbers`.

local function instant()
  return micros()
end

-- A fencing token outgrows all earlier ones even when they were forgotten, because the clock has moved on. It nearly
-- always has, so that the time is written first and looked at then; 86400 s are a day. Returns the number, and the
-- same as text.
local function grant(token, ttl_ms)
  local number, text = micros()
  local last = tonumber(redis.call('SET', fence, text, 'EX', '86400', 'GET') or 0)
  if last >= number then
    number = last + 1
    text = string.format('%.0f', number)
    redis.call('SET', fence, text, 'EX', '86400')
  end
  redis.call('SET', holder, token .. ' ' .. text, 'PX', ttl_ms)
  return number, text
end

-- Returns the holder's token and fencing token, or nothing.
local function held_by()
  local value = redis.call('GET', holder)
  if value then
    local token, number = string.match(value, '^(%S+) (%d+)$')
    return token or value, tonumber(number) or 0 -- other libraries put any text of their own there
  end
end

-- The last fencing token; it stands beside the holder's, if the holder is one of this library's.
local function last_fence(number)
  return number and number > 0 and number or tonumber(redis.call('GET', fence) or 0)
end

-- No script ever shortens a lease: the holder may count on what it was told before. There is one holder at most, so
-- that its token is not looked at.
local function extend(_, ttl_ms)
  if redis.call('PTTL', holder) < tonumber(ttl_ms) then
    redis.call('PEXPIRE', holder, ttl_ms)
  end
end

-- How long the lease in the way lasts unless renewed, in ms; -1 when it has no end, -2 when there is none.
local function busy_for()
  return redis.call('PTTL', holder)
end

-- For handing over: the only lease there is ends by itself; and there is nothing to ask, as one holder can always be
-- granted a free mutex, and no other beside it.
local backlog = false
local can_grant, full

local function take_back(_)
  redis.call('DEL', holder)
end
