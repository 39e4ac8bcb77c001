-- A semaphore being granted: a sorted set of holders' tokens, scored with the server's own time (ms) at which each lease ends.
-- Beside it one hash: the limit in force, the last fencing token, the largest weight and TTL ever granted; for each
-- holder `permits fence`; `line`, where there may be a queue; and `used`: the permits in use, over how many holders they
-- were counted, the last fencing token at that time, when the first lease ends at the earliest, and until when the set
-- lives at least (ms). `asking` is the token that asks, if one does.
-- Needs the names: holders, meta, asking.

local now_us = micros()
local now_ms = math.floor(now_us / 1000)
local known = redis.call('HMGET', meta, 'limit', 'fence', 'weight', 'ttl', 'used', 'line', asking)
local limit_in_force = tonumber(known[1] or 0) -- 0: nobody has declared one, or the hash was deleted
local newest = tonumber(known[2] or 0)
local heaviest = tonumber(known[3] or 0)
local longest = tonumber(known[4] or 0)
local in_line, own = known[6], known[7]

-- The number is never too small while its fencing token is the last one: only a grant adds to it, and each writes both
-- at once. An older version of these scripts writes the fencing token alone; and what it takes away, or Redis does with
-- the whole set, shows in the number of holders, which is compared before a request is refused.
local used, members, witness, first_end, kept_until = string.match(known[5] or '', '^(%d+) (%d+) (%d+) (%d+) (%d+)')
local counted = witness and witness == known[2]
used, members = tonumber(used or 0), tonumber(members or 0)
first_end, kept_until = tonumber(first_end or 0), tonumber(kept_until or 0)

-- Whether the number can be relied on, and no lease has run out: then each that is there is live.
local sure = counted and first_end > now_ms and first_end <= now_ms + longest

local MINUTE_US = 60000000
local unwritten = false -- the number has changed since it was written
local settled = false -- the number was compared with what is there

-- The spaces make it longer than 64 bytes: then Redis keeps the hash as a table, while it would read through up to 128
-- short fields, packed one behind the other, for every one that is asked for.
local function number_kept()
  unwritten = false
  return string.format('%.0f %.0f %.0f %.0f %.0f%30s', used, members, newest, first_end, kept_until, '')
end

-- Returns the fencing token, and the same as text. Keys outlive what they tell, and never lose time: no lease ends later
-- than in `longest`. The set lives a little longer than needed, and where nobody waits the hash is kept alive once a minute, so as not
-- to be extended each time.
local function grant(token, ttl_ms, permits)
  ttl_ms, permits = tonumber(ttl_ms), tonumber(permits)
  local number, ends = math.max(newest + 1, now_us), now_ms + ttl_ms
  local text = digits(number)
  if redis.call('ZADD', holders, 'GT', ends, token) == 1 then
    used, members = used + permits, members + 1
  end
  local alone = members == 1
  first_end = alone and ends or math.min(first_end, ends)
  local stale = settled or ttl_ms > longest or math.floor(number / MINUTE_US) ~= math.floor(newest / MINUTE_US)
  newest, heaviest, longest = number, math.max(heaviest, permits), math.max(longest, ttl_ms)
  local life
  if alone or ends > kept_until then
    life = alone and ttl_ms or ttl_ms + math.floor(ttl_ms / 8)
    if life < longest then
      life = math.max(life, redis.call('PTTL', holders))
    end
    kept_until = now_ms + life
  end
  redis.call(
    'HSET', meta, 'fence', text, 'weight', heaviest, 'ttl', longest, 'used', number_kept(),
    token, permits .. ' ' .. text
  )
  if life then
    redis.call('PEXPIRE', holders, life)
  end
  if stale then
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
  end
  return number, text
end
