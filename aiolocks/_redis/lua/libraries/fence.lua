-- A mutex being granted: one key with `token fence` in it for as long as the lease lasts.
-- Needs the names: holder, fence.

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
