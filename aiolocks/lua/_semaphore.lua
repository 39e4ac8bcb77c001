-- The rest of a semaphore: what is free, for how long, and under which limit.
-- Needs the names: holders, meta, now_ms, limit_in_force, newest, heaviest, longest, in_line, counted, used,
-- members, first_end, kept_until, unwritten, settled, number_kept.

local MOST = 500 -- holders that are asked about, or whose leases that ran out are dropped, at once
local backlog = false -- more leases have run out than one script drops

-- Writes down the number; where that is refused, as at the memory limit, it is counted anew the next time.
local function note()
  if limit_in_force > 0 then
    redis.pcall(
      'HSET', meta, 'weight', digits(heaviest), 'ttl', digits(longest), 'used', number_kept()
    )
  end
end

-- How many permits are written down in a holder's field. The usual one digit is read without making a text of it: that
-- is most of what it costs to count thousands.
local function weight_in(terms)
  local one, two = string.byte(terms, 1, 2)
  return two == 32 and one - 48 or tonumber(string.match(terms, '^%d+'))
end

-- How many permits each of these holders has; false where that is not known.
local function weights_of(tokens, from)
  local weights = redis.call('HMGET', meta, unpack(tokens, from, math.min(from + MOST - 1, #tokens)))
  for at, terms in ipairs(weights) do
    weights[at] = terms and weight_in(terms) or false
  end
  return weights
end

local function delete_fields(fields)
  for from = 1, #fields, MOST do
    redis.call('HDEL', meta, unpack(fields, from, math.min(from + MOST - 1, #fields)))
  end
end

-- A holder of which nothing is known, as its field was deleted, counts as the largest weight there was; or as all that
-- there is, if that is gone too. Nothing is granted beside such a one, and so no largest weight is noted.
local function largest()
  return heaviest > 0 and heaviest or limit_in_force
end

-- Makes the number anew. Where nobody was ever granted more than one permit, each holder has one, and none has to be
-- asked about; nor where the hash was deleted. Without a limit nothing can be granted until one is declared, which
-- counts.
local function count_anew()
  local left = redis.call('PTTL', holders)
  members, kept_until = redis.call('ZCARD', holders), now_ms + math.max(left, 0)
  longest = longest > 0 and longest or math.max(left, 0)
  local nothing_known = newest == 0 -- the hash was deleted: a limit may have been declared since, but nothing granted
  if heaviest == 1 or nothing_known or limit_in_force == 0 then
    used = largest() * members
    return
  end
  local tokens = redis.call('ZRANGE', holders, 0, -1)
  used = 0
  for from = 1, #tokens, MOST do
    for _, weight in ipairs(weights_of(tokens, from)) do
      used = used + (weight or largest())
    end
  end
end

-- Redis itself removed the set, as all leases in it had run out: drops what is known of those who held.
local function forget_all()
  used, members, first_end, kept_until = 0, 0, 0, 0
  redis.call('DEL', meta)
  if limit_in_force > 0 then
    redis.call('HSET', meta, 'limit', limit_in_force, 'fence', digits(newest), 'line', '1')
    redis.call('PEXPIRE', meta, digits(math.max(DAY_MS, 2 * longest)))
  end
end

-- Takes so many holders that were taken out of the set off the number.
local function forget(tokens, weights)
  delete_fields(tokens)
  members = members - #tokens
  for at = 1, #tokens do
    if not weights[at] then
      return count_anew() -- it may have been counted as more
    end
    used = used - weights[at]
  end
end

-- Gives back the permits of leases that have run out.
local function drop_ended()
  local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', 0, MOST)
  if ended[1] then
    local weights = weights_of(ended, 1)
    redis.call('ZREM', holders, unpack(ended))
    forget(ended, weights)
  end
  backlog = #ended == MOST
  first_end = tonumber(redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0)
end

-- Every script begins here that does not know the number for sure: it counts anew where the witnesses differ, and
-- permits whose holders have gone come back. Nothing is changed when there are none, so that a request which the server
-- then refuses, for want of memory, has changed nothing.
local function settle()
  settled = true
  local count = redis.call('ZCARD', holders)
  local anew = members ~= count or (not counted and count > 0)
  if count == 0 and members > 0 then
    forget_all()
  elseif anew then
    count_anew()
  end
  local passed = count > 0 and (anew or first_end <= now_ms or first_end > now_ms + longest)
  if passed then
    drop_ended()
  end
  if anew or passed then
    note()
  end
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
  local scores = {}
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', holders, '(' .. latest, '+inf', 'LIMIT', 0, MOST)) do
    scores[#scores + 1], scores[#scores + 2] = latest, token
  end
  if scores[1] then
    redis.call('ZADD', holders, 'XX', unpack(scores))
    first_end = math.min(first_end, now_ms + longest)
    note() -- else permits would be missing for as long as the clock went back
  end
end

-- Lets releases know that there may be a queue to hand over to.
local function expect_line()
  if not in_line and limit_in_force > 0 then
    redis.call('HSET', meta, 'line', '1')
    in_line = '1'
  end
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
  clamp()
  if head then
    expect_line()
  end
  return 'later', math.max(limit_in_force - used, 0)
end

local function put_in_force(limit)
  local forgotten = heaviest == 0 and members > 0
  limit_in_force = tonumber(limit)
  redis.call('HSET', meta, 'limit', limit)
  redis.call('PEXPIRE', meta, math.max(redis.call('PTTL', meta), DAY_MS))
  if forgotten then
    count_anew()
    note()
  end
end

-- Keys outlive what they tell, and never lose time. PEXPIRE goes first, as it is allowed at the memory limit.
local function keep(ttl_ms)
  redis.call('PEXPIRE', holders, math.max(redis.call('PTTL', holders), tonumber(ttl_ms)))
  redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * math.max(longest, tonumber(ttl_ms))))
end

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(token, ttl_ms)
  keep(ttl_ms)
  redis.call('ZADD', holders, 'XX', 'GT', digits(now_ms + tonumber(ttl_ms)), token)
  if tonumber(ttl_ms) > longest then
    longest = tonumber(ttl_ms)
    if limit_in_force > 0 then -- else the hash was deleted
      redis.call('HSET', meta, 'ttl', digits(longest))
    end
    keep(ttl_ms)
  end
end

local function is_live(token)
  return tonumber(redis.call('ZSCORE', holders, token) or 0) > now_ms
end

-- Ends the lease of a holder, and says whether it had one that was live.
local function drop(token)
  local live = not backlog or is_live(token)
  if redis.call('ZREM', holders, token) == 0 then
    return false
  end
  forget({ token }, weights_of({ token }, 1))
  unwritten = true
  return live
end

local function revoke(token)
  drop(token)
  note()
end

-- The fencing token of a holder's lease, or nothing.
local function fence_of(token)
  if is_live(token) then
    return tonumber(string.match(redis.call('HMGET', meta, token)[1] or '1 0', '%d+$'))
  end
end
