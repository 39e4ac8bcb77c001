-- A mutex being granted: one key with `token fence` in it for as long as the lease lasts.
-- Needs the names: holder, fence.

local function last_fence()
  return tonumber(redis.call('GET', fence) or 0)
end

local function next_fence()
  return math.max(last_fence() + 1, micros())
end

local function grant(token, ttl_ms, permits, number)
  redis.call('SET', holder, token .. ' ' .. digits(number), 'PX', ttl_ms)
  redis.call('SET', fence, digits(number), 'EX', DAY)
end
