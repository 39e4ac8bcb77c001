-- The leases of several holders under one name: a sorted set of the holders' tokens, scored with the server's time (ms)
-- at which each lease ends. Next to it is a hash with the last fencing token, the largest TTL ever granted, and the
-- terms of each holder: its share (permits or a mode), its fencing token, and perhaps a third word, the mark (W16, W17,
-- W18):
--   R  revoked: the lease goes on until its holder releases it or it ends, and nothing extends it
--   C  cooling: its holder has released it; it is no one's lease, but it blocks others until it ends; so is a pause
--   O  offered: its holder has handed it off under a secret, which replaces its token until the lease is adopted
-- An older version of these scripts does not know the third word. It extends such a lease and lets its guard write, so
-- the lease goes on until it is released or its process is updated. If an acquire of its token was sent twice, the
-- older version queues the token, or grants it without the mark. It releases such a lease like any other, does not
-- downgrade it, and grants nothing that excludes it.
-- Needs the names: holders, meta; first for `count_kept`; and `numbers`.

local PAUSE, ALL_PERMITS = 'pause', 1000000000 -- W25: the token of a pause, and its permits: no limit is larger

-- defect: W21-holders
local MOST = 500 -- maximum number of holders that one command asks about, and of ended leases that one script removes
local backlog = false -- more leases have ended than one script removes

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000) -- P9: leases end by the server's clock -- defect: P9-clock

local function instant()
  return now_us, digits(now_us)
end

-- The last fencing token; the largest TTL in ms; the largest share; and whether the hash describes the leases, or was
-- deleted while they were held.
local newest, longest, heaviest, described

-- As read from the hash, each a text or a number: the last fencing token, when the first lease ends at the earliest
-- (ms), until when the set lives at least (ms), and the limit of a semaphore. A text can be written back as it is.
local newest_text, first_end, kept_until, limit_text
local members = 0 -- the number of holders that the counts are of
local settled = false -- the counts were compared with the set
local unwritten = false -- the counts have changed since they were written
local MINUTE_US = 60000000

-- How long the hash lives without use, in ms: twice the longest lease, and a day at least. If the limit of a semaphore
-- is pinned, the hash lives for 30 days at least. A `+` in front of `limit_text` pins it; an older version of these
-- scripts reads the same number, but gives the hash a day, and drops the pin if it writes the limit.
local function idle_life(ttl_ms)
  return math.max(string.sub(limit_text or '', 1, 1) == '+' and 30 * DAY_MS or DAY_MS, 2 * ttl_ms) .. ''
end

local function is_live(token)
  return (redis.call('ZSCORE', holders, token) or 0) - now_ms > 0
end

-- Returns the fencing token in a holder's terms, or 0 if the hash was deleted; and the mark, or an empty text.
local function parts_of(terms)
  local number, mark = string.match(terms or '', '^%d+ (%d+) ?(%u?)$')
  return tonumber(number) or 0, mark or ''
end

-- Returns the same for a token; nil if it has no live lease.
local function fence_of(token)
  if is_live(token) then
    return parts_of(redis.call('HMGET', meta, token)[1])
  end
end

-- The keys outlive the leases, and never lose time.
local function keep(ttl_ms)
  -- W9: PEXPIRE is allowed at the memory limit, and after it so is every other write.
  redis.call('PEXPIRE', holders, math.max(redis.call('PTTL', holders), ttl_ms) .. '')
  redis.call('PEXPIRE', meta, idle_life(math.max(longest, ttl_ms)))
end

-- P3: no lease is ever shortened, because its holder relies on what it was told before.
local function extend(token, ttl_ms)
  keep(ttl_ms) -- defect: W9-extend
  redis.call('ZADD', holders, 'XX', 'GT', now_ms + ttl_ms, token) -- defect: P3-extend
  if ttl_ms - longest > 0 then
    longest = ttl_ms + 0
    if described then
      redis.call('HSET', meta, 'ttl', longest)
    end
    keep(ttl_ms)
  end
end

-- Extends a live lease without a mark, by no more than the largest TTL so far. Returns true if it was extended.
local function extend_as_usual(token, ttl_ms)
  local known = redis.call('HMGET', meta, 'ttl', token, 'limit')
  longest, limit_text = (known[1] or 0) + 0, known[3]
  if ttl_ms - longest <= 0 and not string.find(known[2] or '', ' %u') and is_live(token) then -- defect: W21-usual
    extend(token, ttl_ms)
    return true
  end
end

-- W18: a released lease blocks others until *hold_ms* after its grant; below 0, for so long from now (W28). Returns
-- the ms until then; 0 if the lease is cooling already, and nothing changes; nil if it is to be released at once. After
-- a step of the clock it is *hold_ms* from now at most. *terms* are the holder's terms in the hash.
local function cool(token, terms, hold_ms)
  local number, mark = parts_of(terms)
  if mark == 'C' and is_live(token) then
    return 0
  end
  -- equivalent: constant, smaller than any fencing token
  if hold_ms and number > 0 and mark == '' and is_live(token) then
    local left_ms = -hold_ms -- W28
    if left_ms < 0 then
      left_ms = math.floor(math.min(number - now_us, 0) / 1000) - left_ms
    end
    if left_ms > 0 then
      keep(left_ms) -- W9: the first write
      redis.call('ZADD', holders, 'XX', now_ms + left_ms, token)
      redis.call('HSET', meta, token, terms .. ' C')
      if left_ms > longest then
        longest = left_ms
        redis.call('HSET', meta, 'ttl', longest)
      end
      first_end, unwritten = math.min(first_end, now_ms + left_ms), true
      return left_ms
    end
  end
end

-- Returns how many leases from the place *first* on are cooling, without a pause; when the last of these ends (ms), or
-- 0; and the place to continue from, or 0 after the last lease.
local function count_kept()
  local from = tonumber(first)
  local found = redis.call('ZRANGE', holders, from, from + MOST - 1, 'WITHSCORES')
  local tokens, kept, last = {}, 0, 0
  for at = 1, #found, 2 do
    tokens[#tokens + 1] = found[at]
  end
  local known = tokens[1] and redis.call('HMGET', meta, spread(tokens, 1, #tokens)) or tokens
  for at, terms in ipairs(known) do
    local _, mark = parts_of(terms)
    local ends = tonumber(found[2 * at])
    if mark == 'C' and ends > now_ms and tokens[at] ~= PAUSE then
      kept, last = kept + 1, ends -- in the order in which they end
    end
  end
  return kept, last, #tokens == MOST and from + MOST or 0
end

-- P9: after the clock stepped back, scores are further ahead than any lease can last, also those of dead holders. Each
-- is lowered to now + the largest TTL, the most that a holder was promised. Returns that time if there were any.
local function clamp()
  if longest == 0 then
    return -- the hash was deleted while leases were held
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
