-- A semaphore being granted: a sorted set of holders' tokens, scored with the server's own time (ms) at which each lease ends.
-- Beside it one hash: the limit in force, the last fencing token, the largest weight and TTL ever granted, and for
-- each holder `permits fence`.
-- Needs the names: holders, meta.

local now_us = micros()
local now_ms = math.floor(now_us / 1000)
local known = redis.call('HMGET', meta, 'limit', 'fence', 'weight', 'ttl')
local limit_in_force = tonumber(known[1] or 0) -- 0: nobody has declared one, or the hash was deleted
local newest = tonumber(known[2] or 0)
local heaviest = tonumber(known[3] or 0)
local longest = tonumber(known[4] or 0)

-- Drops what is known of tokens that hold nothing any more.
local function forget_the_dead()
  for _, field in ipairs(redis.call('HKEYS', meta)) do
    if string.len(field) > string.len('weight') and not redis.call('ZSCORE', holders, field) then
      redis.call('HDEL', meta, field)
    end
  end
end

-- Keys outlive what they tell, and never lose time. PEXPIRE goes first, as it is allowed at the memory limit.
local function keep(ttl_ms)
  redis.call('PEXPIRE', holders, math.max(redis.call('PTTL', holders), tonumber(ttl_ms)))
  redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * math.max(longest, tonumber(ttl_ms))))
end

-- Returns the fencing token, and the same as text.
local function grant(token, ttl_ms, permits)
  local number = math.max(newest + 1, now_us)
  local text = digits(number)
  if redis.call('ZADD', holders, digits(now_ms + tonumber(ttl_ms)), token) == redis.call('ZCARD', holders) then
    forget_the_dead() -- the first one: Redis itself removes the set when all leases in it have run out
  end
  newest, heaviest, longest = number, math.max(heaviest, tonumber(permits)), math.max(longest, tonumber(ttl_ms))
  redis.call(
    'HSET', meta, 'fence', text, 'weight', digits(heaviest), 'ttl', digits(longest),
    token, permits .. ' ' .. text
  )
  keep(ttl_ms)
  return number, text
end
