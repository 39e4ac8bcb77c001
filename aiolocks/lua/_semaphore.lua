-- A semaphore: a sorted set of holders' tokens, scored with the server's own time (ms) at which each lease ends.
-- Beside it one hash: the limit in force, the last fencing token, the largest weight and TTL ever granted, and for
-- each holder `permits fence`.
-- Needs the names: holders, meta.

local now_ms = math.floor(micros() / 1000)

-- Every script begins here: permits whose holders have gone come back. It is also a write that is allowed at the
-- memory limit, after which all others are.
local function drop_expired()
  if redis.call('ZREMRANGEBYSCORE', holders, '-inf', now_ms) > 0 then
    for _, field in ipairs(redis.call('HKEYS', meta)) do
      if string.len(field) >= 22 and not redis.call('ZSCORE', holders, field) then
        redis.call('HDEL', meta, field) -- the permits and fence of a token that is gone
      end
    end
  end
end

local function number_of(field)
  return tonumber(redis.call('HGET', meta, field) or 0)
end

local function last_fence()
  return number_of('fence')
end

local function next_fence()
  return math.max(last_fence() + 1, micros())
end

-- Permits in use. While nobody ever took more than one, that is the number of holders.
local function in_use()
  if number_of('weight') <= 1 then
    return redis.call('ZCARD', holders)
  end
  local sum = 0
  for _, token in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    sum = sum + tonumber(string.match(redis.call('HGET', meta, token) or '1', '^%d+'))
  end
  return sum
end

-- ms until the first lease can end; -2 when nobody holds one.
local function busy_for()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return first and math.max(tonumber(first) - now_ms, 0) or -2
end

-- A clock that stepped back left scores further ahead than any lease can last: nobody renews those of the dead, so
-- bring them down to what a holder that lives has been promised at most.
local function clamp()
  local latest = now_ms + number_of('ttl')
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', holders, '(' .. digits(latest), '+inf')) do
    redis.call('ZADD', holders, 'XX', digits(latest), token)
  end
end

-- Can this many permits be had now? 'yes', or 'later' and how many are free, or 'never' and the limit.
local function admits(permits)
  local limit = number_of('limit')
  if permits > limit then
    return 'never', limit
  end
  local free = limit - in_use()
  if permits <= free then
    return 'yes', free
  end
  clamp()
  return 'later', math.max(free, 0)
end

local function keep(ttl_ms)
  redis.call('PEXPIRE', holders, math.max(redis.call('PTTL', holders), tonumber(ttl_ms)))
  redis.call('PEXPIRE', meta, math.max(redis.call('PTTL', meta), DAY * 1000, 2 * tonumber(ttl_ms)))
end

local function remember_ttl(ttl_ms)
  if tonumber(ttl_ms) > number_of('ttl') then
    redis.call('HSET', meta, 'ttl', ttl_ms)
  end
end

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(token, ttl_ms)
  redis.call('ZADD', holders, 'XX', 'GT', digits(now_ms + tonumber(ttl_ms)), token)
  remember_ttl(ttl_ms)
  keep(ttl_ms)
end

local function grant(token, ttl_ms, permits, number)
  redis.call('ZADD', holders, digits(now_ms + tonumber(ttl_ms)), token)
  redis.call('HSET', meta, 'fence', digits(number), token, permits .. ' ' .. digits(number))
  if tonumber(permits) > number_of('weight') then
    redis.call('HSET', meta, 'weight', permits)
  end
  remember_ttl(ttl_ms)
  keep(ttl_ms)
end

-- The fencing token of a holder's lease, or nothing.
local function fence_of(token)
  if redis.call('ZSCORE', holders, token) then
    return tonumber(string.match(redis.call('HGET', meta, token) or '1 0', '%d+$'))
  end
end
