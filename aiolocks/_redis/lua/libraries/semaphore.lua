-- The rest of a semaphore: what is free, and for how long.
-- Needs the names: holders, meta, now_ms, limit_in_force, newest, heaviest, longest, in_line, asking, own, used,
-- members, first_end, kept_until, unwritten, number_kept.

local MOST = 500 -- holders that are asked about, or whose leases that ran out are dropped, at once
local backlog = false -- more leases have run out than one script drops

-- Writes down the number; where that is refused, as at the memory limit, it is counted anew the next time.
local function note()
  if limit_in_force > 0 then
    redis.pcall('HSET', meta, 'weight', heaviest, 'ttl', longest, 'used', number_kept())
  end
end

-- ms until the first lease can end; -2 when nobody holds one.
local function busy_for()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return first and math.max(tonumber(first) - now_ms, 0) or -2
end

-- Can this many permits be had now? 'yes', or 'later' and how many are free, or 'never' and the limit. *head*: whose
-- turn it is, if they are asked for by the first in line.
local function admits(permits, head)
  if permits > limit_in_force and limit_in_force > 0 then
    return 'never', limit_in_force
  end
  if used + permits <= limit_in_force then
    return 'yes', limit_in_force - used
  end
  -- uses  clamp
  if head then
    -- uses  expect_line
  end
  return 'later', math.max(limit_in_force - used, 0)
end

-- Whether the next in line would be told 'later' whatever it asks for, so that it need not be looked at.
local function full()
  return used >= limit_in_force and in_line
end

-- Ends the lease of a holder, and says whether it had one that was live.
local function drop(token)
  local live = not backlog or tonumber(redis.call('ZSCORE', holders, token) or 0) > now_ms
  if redis.call('ZREM', holders, token) == 0 then
    return false
  end
  local weight = string.match(token == asking and own or redis.call('HMGET', meta, token)[1] or '', '^%d+')
  redis.call('HDEL', meta, token)
  members, unwritten = members - 1, true
  if weight then
    used = used - weight
  else -- it may have been counted as more
    -- uses  count
  end
  return live
end

local function revoke(token)
  drop(token)
  note()
end
