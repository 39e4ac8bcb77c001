-- The leases of a semaphore's holders.
-- Needs the names: holders, meta, now_ms, limit_in_force, longest.

-- Keys outlive what they tell, and never lose time. PEXPIRE goes first, as it is allowed at the memory limit.
local function keep(ttl_ms)
  redis.call('PEXPIRE', holders, math.max(redis.call('PTTL', holders), tonumber(ttl_ms)))
  redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * math.max(longest, tonumber(ttl_ms))))
end

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(token, ttl_ms)
  keep(ttl_ms)
  redis.call('ZADD', holders, 'XX', 'GT', now_ms + tonumber(ttl_ms), token)
  if tonumber(ttl_ms) > longest then
    longest = tonumber(ttl_ms)
    if limit_in_force > 0 then -- else the hash was deleted
      redis.call('HSET', meta, 'ttl', longest)
    end
    keep(ttl_ms)
  end
end

local function is_live(token)
  return tonumber(redis.call('ZSCORE', holders, token) or 0) > now_ms
end

-- The fencing token of a holder's lease, or nothing.
local function fence_of(token)
  if is_live(token) then
    return tonumber(string.match(redis.call('HMGET', meta, token)[1] or '1 0', '%d+$'))
  end
end
