-- A semaphore: leases whose hash has the limit in force, the last fencing token, the largest weight and TTL ever
-- granted; for each holder `permits fence`; `line`, where there may be a queue; and `used`: the permits in use, over
-- how many holders they were counted, the last fencing token at that time, when the first lease ends at the earliest,
-- and until when the set lives at least (ms). `asking` is the token that asks, if one does.
-- Needs the names: holders, meta, asking; and `numbers` and `leases`.

-- To add 0 makes a number of a text in half the time of `tonumber`.
local known = redis.call('HMGET', meta, 'limit', 'fence', 'weight', 'ttl', 'used', 'line', asking)
local limit_in_force = (known[1] or 0) + 0 -- 0: none was declared, or the hash was deleted
newest, longest, described = (known[2] or 0) + 0, (known[4] or 0) + 0, limit_in_force > 0
newest_text, limit_text = known[2], known[1]
local heaviest = (known[3] or 0) + 0
local in_line, own = known[6], known[7]

-- The number is never too small while its fencing token is the last one: only a grant adds to it, and each writes both
-- at once. An older version of these scripts writes the fencing token alone; and what it takes away, or Redis does with
-- the whole set, shows in the number of holders, which is compared before a request is refused.
local used, count, witness
used, count, witness, first_end, kept_until = string.match(known[5] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)')
local counted = witness and witness == known[2] -- defect: W21-witness
used, members, first_end, kept_until = (used or 0) + 0, (count or 0) + 0, first_end or 0, kept_until or 0

-- Whether the number can be relied on, and no lease has run out: then each that is there is live.
local sure = counted and first_end - now_ms > 0 and first_end - now_ms <= longest

-- The spaces make it longer than 64 bytes: then Redis keeps the hash as a table, while it would read through up to 128
-- short fields, packed one behind the other, for every one that is asked for.
local SPACES = '                              '

local function number_kept()
  unwritten = false -- equivalent: line dropped, only written again
  return used .. ' ' .. members .. ' ' .. (newest_text or '0') .. ' ' .. first_end .. ' ' .. kept_until .. SPACES
end

-- Returns the fencing token, and the same as text.
local function grant(token, ttl_ms, permits)
  local added, life, stale = seat(token, ttl_ms)
  if added == 1 then
    used = used + permits
  end
  if permits - heaviest > 0 or ttl_ms - longest > 0 then
    heaviest, longest = math.max(heaviest, permits), math.max(longest, ttl_ms)
    redis.call('HSET', meta, 'weight', heaviest, 'ttl', longest)
  end
  redis.call('HSET', meta, 'fence', newest_text, 'used', number_kept(), token, permits .. ' ' .. newest_text)
  keep_seated(life, stale)
  return newest, newest_text
end

-- Writes down the number; where that is refused, as at the memory limit, it is counted anew the next time.
local function note()
  if described then
    redis.pcall('HSET', meta, 'weight', heaviest, 'ttl', longest, 'used', number_kept())
  end
end

-- Counts the permits in use anew. Where no holder was ever granted more than one permit, each has one, and none has to
-- be asked about; nor where the hash was deleted. Without a limit nothing can be granted until one is declared, which
-- counts. A holder of which nothing is known, as its field was deleted, counts as the largest weight there was; or as
-- all that there is, if that is gone too. Nothing is granted beside such a one, and so no largest weight is noted.
local function count_anew()
  local left = redis.call('PTTL', holders)
  local unknown = heaviest > 0 and heaviest or limit_in_force -- defect: W21-unknown
  -- equivalent: constant + min/max + sign, only extended once more
  members, kept_until = redis.call('ZCARD', holders), now_ms + math.max(left, 0)
  longest = longest > 0 and longest or math.max(left, 0) -- equivalent: constant, no lease is so short
  -- equivalent: 1 (first) + and (second), the same number, counted one by one
  if heaviest == 1 or newest == 0 or limit_in_force == 0 then -- newest: a limit was declared since, but nothing granted
    used = unknown * members
    return
  end
  used = 0
  local tokens = redis.call('ZRANGE', holders, 0, -1)
  for from = 1, #tokens, MOST do
    for _, terms in ipairs(redis.call('HMGET', meta, spread(tokens, from, math.min(from + MOST - 1, #tokens)))) do
      -- The usual one digit is read without making a text of it: that is most of what it costs to count thousands.
      local one, two = string.byte(terms or '', 1, 2) -- equivalent: 3, the third is not read
      -- equivalent: 33 + and (first), both read the same number
      used = used + (two == 32 and one - 48 or terms and string.match(terms, '^%d+') or unknown)
    end
  end
end

-- Gives back the permits of leases that have run out.
local function drop_ended()
  local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', 0, MOST)
  if ended[1] then
    local known_of = redis.call('HMGET', meta, spread(ended, 1, #ended))
    redis.call('ZREM', holders, spread(ended, 1, #ended))
    redis.call('HDEL', meta, spread(ended, 1, #ended))
    local unsure = false
    members = members - #ended
    for _, terms in ipairs(known_of) do
      local weight = string.match(terms or '', '^%d+')
      used = used - (weight or 0) -- defect: W21-weight
      unsure = unsure or not weight -- it may have been counted as more
    end
    if unsure then
      -- slow path
      count_anew()
    end
  end
  backlog = #ended == MOST
  first_end = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0
end

-- Every script that does not know the number for sure goes through here: it is counted anew where the witnesses differ,
-- and permits whose holders have gone come back. Nothing is changed when there are none, so that a request which the
-- server then refuses, for want of memory, has changed nothing.
local function settle()
  settled = true
  local count = redis.call('ZCARD', holders)
  local anew = members ~= count or (not counted and count > 0) -- defect: W21-members
  if count == 0 and members > 0 then
    -- Redis itself removed the set, as all leases in it had run out: drop what is known of those who held.
    used, members, first_end, kept_until = 0, 0, 0, 0 -- equivalent: 1 (fourth) + 1 (third), 0 and 1 are past
    redis.call('DEL', meta)
    if described then
      redis.call(
        -- equivalent: constant, any text
        'HSET', meta, 'limit', limit_text, 'fence', newest, 'weight', heaviest, 'ttl', longest, 'line', '1'
      )
      redis.call('PEXPIRE', meta, idle_life(longest))
    end
  elseif anew then
    -- slow path
    count_anew()
  end
  local passed = count > 0 and (anew or first_end - now_ms <= 0 or first_end - now_ms > longest)
  if passed then
    -- slow path
    drop_ended()
  end
  if anew or passed then
    -- slow path
    note()
  end
end

-- Lets releases know that there may be a queue to hand over to.
local function expect_queue()
  if not in_line and described then
    -- equivalent: constant, any text
    redis.pcall('HSET', meta, 'line', '1') -- where that is refused, as at the memory limit, a re-check hands over
    in_line = '1' -- equivalent: constant, any text
  end
end

-- Can this many permits be had now? 'yes', or 'later' and how many are free, or 'never' and the limit. *head*: whose
-- turn it is, if they are asked for by the first in line.
local function can_grant(permits, head)
  if permits > limit_in_force and limit_in_force > 0 then -- defect: W12-never
    return 'never', limit_in_force
  end
  if used + permits <= limit_in_force then -- defect: P9-limit
    return 'yes', limit_in_force - used -- equivalent: sign, not read with yes
  end
  -- slow path
  if not settled then
    settle()
    if used + permits <= limit_in_force then -- defect: P9-limit
      return 'yes', limit_in_force - used -- equivalent: sign, not read with yes
    end
  end
  local latest = clamp()
  if latest then
    first_end = math.min(first_end, latest)
    note() -- else permits would be missing for as long as the clock went back
  end
  if head then
    expect_queue()
  end
  return 'later', math.max(limit_in_force - used, 0)
end

-- Whether the next in line would be told 'later' whatever it asks for, so that it need not be looked at.
local function full()
  return used >= limit_in_force and in_line
end

-- Ends the lease of a holder, and says whether it had one that was live.
local function drop(token)
  local live = not backlog or is_live(token)
  if redis.call('ZREM', holders, token) == 0 then
    return false
  end
  local weight = string.match(token == asking and own or redis.call('HMGET', meta, token)[1] or '', '^%d+')
  redis.call('HDEL', meta, token)
  members, unwritten = members - 1, true
  if weight then
    used = used - weight
  else
    -- slow path: it may have been counted as more
    count_anew()
  end
  return live
end

local function take_back(token)
  drop(token)
  note()
end

-- Whether the limit in force is pinned: then no declaration changes it.
local function is_pinned()
  return string.sub(limit_text or '', 1, 1) == '+'
end

-- Puts a limit in force; with *pin* it also pins the limit.
local function declare_limit(limit, pin)
  local forgotten = heaviest == 0 and members > 0 -- equivalent: >= + and/or, counted again it is the same
  limit_in_force, described, limit_text = tonumber(limit), true, (pin and '+' or '') .. limit
  redis.call('HSET', meta, 'limit', limit_text)
  redis.call('PEXPIRE', meta, math.max(redis.call('PTTL', meta), idle_life(longest)))
  if forgotten then
    -- slow path
    count_anew()
    note()
  end
end
