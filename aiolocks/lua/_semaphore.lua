-- The rest of a semaphore: what is free, for how long, and under which limit.
-- Needs the names: holders, meta, now_ms, limit_in_force, heaviest, longest, forget_the_dead, keep.

-- Every script begins here: permits whose holders have gone come back. Nothing is written when there are none, so
-- that a request which the server then refuses, for want of memory, has changed nothing.
local function drop_expired()
  if redis.call('ZCOUNT', holders, '-inf', now_ms) > 0 then
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', now_ms)
    forget_the_dead()
  end
end

-- Permits in use. While nobody ever took more than one, that is the number of holders.
local function in_use()
  if heaviest <= 1 then
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
  if longest == 0 then
    return -- the hash was deleted under its holders
  end
  local latest = digits(now_ms + longest)
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', holders, '(' .. latest, '+inf')) do
    redis.call('ZADD', holders, 'XX', latest, token)
  end
end

-- Can this many permits be had now? 'yes', or 'later' and how many are free, or 'never' and the limit.
local function admits(permits)
  if permits > limit_in_force and limit_in_force > 0 then
    return 'never', limit_in_force
  end
  local used = in_use()
  if used + permits <= limit_in_force then
    return 'yes', limit_in_force - used
  end
  clamp()
  return 'later', math.max(limit_in_force - used, 0)
end

local function put_in_force(limit)
  limit_in_force = tonumber(limit)
  redis.call('HSET', meta, 'limit', limit)
  redis.call('PEXPIRE', meta, math.max(redis.call('PTTL', meta), DAY_MS))
end

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(token, ttl_ms)
  keep(ttl_ms)
  redis.call('ZADD', holders, 'XX', 'GT', digits(now_ms + tonumber(ttl_ms)), token)
  if tonumber(ttl_ms) > longest then
    longest = tonumber(ttl_ms)
    redis.call('HSET', meta, 'ttl', digits(longest))
  end
end

local function revoke(token)
  redis.call('ZREM', holders, token)
  redis.call('HDEL', meta, token)
end

-- The fencing token of a holder's lease, or nothing.
local function fence_of(token)
  if redis.call('ZSCORE', holders, token) then
    return tonumber(string.match(redis.call('HGET', meta, token) or '1 0', '%d+$'))
  end
end
