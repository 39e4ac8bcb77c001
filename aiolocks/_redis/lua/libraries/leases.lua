-- The leases of several holders at once: a sorted set of holders' tokens, scored with the server's own time (ms) at
-- which each lease ends. Beside it is a hash with the last fencing token, the largest TTL ever granted, and what is
-- known of each holder. `semaphore` and `modes` say what stands in the hash, and read it.
-- Needs the names: holders, meta; and `numbers`.

local MOST = 500 -- holders that are asked about, or whose leases that ran out are dropped, at once
local backlog = false -- more leases have run out than one script drops

local now_us = micros()
local now_ms = math.floor(now_us / 1000)

-- `described`: what the hash tells of the leases may be written; else it was deleted under its holders.
local newest, longest, described -- the last fencing token, and the largest TTL (ms)

local function is_live(token)
  return tonumber(redis.call('ZSCORE', holders, token) or 0) > now_ms
end

-- The fencing token of a holder's lease, or nothing; 0 if the hash was deleted.
local function fence_of(token)
  if is_live(token) then
    return tonumber(string.match(redis.call('HMGET', meta, token)[1] or '0', '%d+$'))
  end
end

-- ms until the first lease can end; -2 when there is none.
local function busy_for()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return first and math.max(tonumber(first) - now_ms, 0) or -2
end

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
    if described then
      redis.call('HSET', meta, 'ttl', longest)
    end
    keep(ttl_ms)
  end
end

-- Extends a lease that is live and lasts no longer than others have, and says whether that was done.
local function extend_as_usual(token, ttl_ms)
  longest = tonumber(redis.call('HMGET', meta, 'ttl')[1] or 0)
  if tonumber(ttl_ms) <= longest and is_live(token) then
    extend(token, ttl_ms)
    return true
  end
end

-- A clock that stepped back left scores further ahead than any lease can last: nothing renews those of dead holders, so
-- bring them down to what a holder that lives has been promised at most. Returns that time, if there were any.
local function clamp()
  if longest == 0 then
    return -- the hash was deleted under its holders
  end
  local latest, scores = digits(now_ms + longest), {}
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', holders, '(' .. latest, '+inf', 'LIMIT', 0, MOST)) do
    scores[#scores + 1], scores[#scores + 2] = latest, token
  end
  if scores[1] then
    redis.call('ZADD', holders, 'XX', spread(scores, 1, #scores))
    return tonumber(latest)
  end
end
