-- A mutex being granted: one key with `token fence` in it for as long as the lease lasts.
-- Needs the names: holder, fence.

-- A fencing token outgrows all earlier ones even when they were forgotten, because the clock has moved on. It nearly
-- always has, so that the time is written first and looked at then. Returns the number, and the same as text.
local function next_fence()
  local number, text = micros()
  local last = redis.call('SET', fence, text, 'EX', DAY, 'GET')
  if last and tonumber(last) >= number then
    number = tonumber(last) + 1
    text = digits(number)
    redis.call('SET', fence, text, 'EX', DAY)
  end
  return number, text
end

local function grant(token, ttl_ms, permits, number, text)
  redis.call('SET', holder, token .. ' ' .. text, 'PX', ttl_ms)
end
