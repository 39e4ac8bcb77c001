-- A semaphore, whose holders have permits as their share: how the hash is read, and how many permits are free.
-- The hash has the limit in force, the last fencing token, the largest weight (permits of one holder) and the largest
-- TTL ever granted; `line` if there may be a queue; `permits fence [mark]` by the token of each holder; and `used`: the
-- permits in use, the number of their holders, the last fencing token at that time, when the first lease ends at the
-- earliest, and until when the set lives at least (ms). `asking` is the token of the request, or empty.
-- Needs the names: holders, meta, asking; and `leases`.

local COUNTS = 'used' -- the field with the counts

-- Adding 0 makes a number of a text in half the time of `tonumber`.
local known = redis.call('HMGET', meta, 'limit', 'fence', 'weight', 'ttl', 'used', 'line', asking)
local limit_in_force = (known[1] or 0) + 0 -- 0: none was declared, or the hash was deleted
newest, longest, heaviest = (known[2] or 0) + 0, (known[4] or 0) + 0, (known[3] or 0) + 0
newest_text, limit_text, described = known[2], known[1], limit_in_force > 0
local noted, in_line, own = known[5], known[6], known[7]

-- W21: the count is never too small while its fencing token is the last one, the witness: only a grant adds to it, and
-- each grant writes both at once. An older version of these scripts writes the fencing token alone. What that version
-- removes, or Redis with the whole set, shows in the number of holders, which is compared before a request is refused.
local used, count_of, witness
used, count_of, witness, first_end, kept_until = string.match(noted or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)')
local counted = witness and witness == known[2] -- defect: W21-witness
used, members, first_end, kept_until = (used or 0) + 0, (count_of or 0) + 0, first_end or 0, kept_until or 0

-- Makes the field longer than 64 bytes, so that Redis keeps the hash as a table, and not as packed fields.
local SPACES = '                              '

local function counts()
  return used .. ' ' .. members .. ' ' .. (newest_text or '0') .. ' ' .. first_end .. ' ' .. kept_until .. SPACES
end

-- The fields of the hash that only a semaphore has.
local function other_fields()
  return 'weight', heaviest, 'limit', limit_text or '0'
end

local function clear()
  used = 0
end

-- Adds this many holders with a share; a negative number removes them.
local function count(share, number)
  used = used + share * number
end

-- W21: a holder whose field was deleted counts as the largest weight there was; or, if that is gone too, as the limit.
local function unknown_share()
  return heaviest > 0 and heaviest or limit_in_force -- defect: W21-unknown
end

-- W25: the largest TTL and weight still include a pause that has ended. Takes them from the leases that are left.
local function forget_pause()
  local last = redis.call('ZRANGE', holders, '-1', '-1', 'WITHSCORES')[2]
  longest = math.max((last or now_ms) - now_ms, 0)
  -- Each other holder has one permit at least. If fewer are counted, the hash was deleted during the pause, and nothing is
  -- known of them.
  heaviest = members > 0 and used >= members and used - members + 1 or 0
  redis.pcall('HSET', meta, 'ttl', longest, other_fields()) -- if that is refused, as at the memory limit, it comes later
  redis.call('PEXPIRE', meta, idle_life(longest))
end

-- Returns the ms until the first lease can end, or -2 if there is none. W25: during a pause, the ms until its end; or
-- until the first other lease can end, if that is later and no permit is free.
local function busy_for()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  local paused = heaviest >= ALL_PERMITS and redis.call('ZSCORE', holders, PAUSE)
  if paused then
    local two = redis.call('ZRANGE', holders, 0, 1, 'WITHSCORES')
    first = two[1] == PAUSE and two[4] or two[2]
    first = used - ALL_PERMITS < limit_in_force and paused or math.max(first, paused) -- defect: W25-later
  end
  return first and math.max(first - now_ms, 0) or -2 -- equivalent: 1, then the answer is more
end

-- Says whether this many permits are free: 'yes'; or 'later', and how many are; or 'never', and the limit (W12).
local function judge(permits)
  if permits > limit_in_force and limit_in_force > 0 then -- defect: W12-never
    return 'never', limit_in_force
  elseif used + permits <= limit_in_force then -- P9 -- defect: P9-limit
    return 'yes'
  end
  return 'later', math.max(limit_in_force - used, 0)
end

-- True if the next waiter would have to wait whatever it asks for, so there is no need to look at it.
local function full()
  return used >= limit_in_force and in_line
end

-- A pinned limit is changed by no declaration.
local function is_pinned()
  return string.sub(limit_text or '', 1, 1) == '+'
end

-- Puts a limit in force, and pins it if *pin* is true.
local function declare_limit(limit, pin)
  limit_in_force, described, limit_text = tonumber(limit), true, (pin and '+' or '') .. limit
  redis.call('HSET', meta, 'limit', limit_text)
  redis.call('PEXPIRE', meta, math.max(redis.call('PTTL', meta), idle_life(longest)) .. '')
end
