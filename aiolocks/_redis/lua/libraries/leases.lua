-- The leases of several holders at once: a sorted set of holders' tokens, scored with the server's own time (ms) at
-- which each lease ends. Beside it is a hash with the last fencing token, the largest TTL ever granted, and what is
-- known of each holder. `semaphore` and `modes` say what stands in the hash, and read it.
-- Of each holder that is its terms (permits, or a mode), its fencing token, and perhaps a third word, a mark:
--   R  revoked: it goes on until its holder releases it or it ends, and nothing extends it
--   C  cooling: its holder has released it, and it is no one's lease, but is in the way of others until it ends
--   O  offered: its holder has handed it off under a secret, which stands in place of its token until it is adopted
-- An older version of these scripts knows no third word. It extends such a lease and lets its guard write, so that it goes
-- on until it is released, or its process has the new ones; and if an acquire of its token was sent twice, has it wait in
-- line, or grants it without the mark. It releases it as any other, does not downgrade it, and grants nothing beside it.
-- Needs the names: holders, meta; first for `count_kept`; and `numbers`.

-- defect: W21-holders
local MOST = 500 -- holders that are asked about, or whose leases that ran out are dropped, at once
local backlog = false -- more leases have run out than one script drops

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000) -- defect: P9-clock

local function instant()
  return now_us, digits(now_us)
end

-- `described`: what the hash tells of the leases may be written; else it was deleted under its holders.
local newest, longest, described -- the last fencing token, and the largest TTL (ms)

-- The hash also tells the limit, what is held, and over how many holders that was counted; when the first lease ends at the
-- earliest, and until when the set lives at least (ms): as they were read, since text can be written again as it is, or
-- as numbers. Who can rely on these need not look at the set.
local newest_text, first_end, kept_until, limit_text
local members = 0
local settled = false -- this was compared with what is there
local unwritten = false -- it has changed since it was written
local MINUTE_US = 60000000

-- How long the hash lives without use, in ms: twice the longest lease, and a day at least. That of a semaphore whose limit
-- is pinned, which `limit_text` shows by a + in front, lives for 30 days at least. With the sign it is still a number:
-- an older version of these scripts reads the same limit and gives the hash a day. If that version writes the limit,
-- the pin is gone.
local function idle_life(ttl_ms)
  return math.max(string.sub(limit_text or '', 1, 1) == '+' and 30 * DAY_MS or DAY_MS, 2 * ttl_ms)
end

-- Puts a holder in the set, which gets the next fencing token. Returns 1, or 0 if it was there; what life is to be given
-- to the set, if it does not live long enough; and whether the hash is to be kept alive. Keys outlive what they tell, and
-- never lose time: no lease ends later than in `longest`. The set lives a little longer than needed, and where no
-- session waits the hash is kept alive once a minute, so as not to be extended each time.
local function seat(token, ttl_ms)
  local number = now_us
  if number <= newest then
    number = newest + 1
  end
  local ends = now_ms + ttl_ms .. '' -- Redis would take longer to make a text of a number
  local added = redis.call('ZADD', holders, 'GT', ends, token)
  local life
  members = members + added
  if members == 1 then
    life, first_end, kept_until = ttl_ms, ends, ends
  else
    if ends - first_end < 0 then
      first_end = ends
    end
    if ends - kept_until > 0 then
      life = ttl_ms + math.floor(ttl_ms / 8) -- equivalent: constant, only longer than needed
      kept_until = now_ms + life
    end
  end
  if life and life - longest < 0 then
    life = math.max(life, redis.call('PTTL', holders))
    kept_until = now_ms + life
  end
  -- equivalent: constant, a millisecond of twice the life
  local stale = settled or ttl_ms - longest > 0 or number - number % MINUTE_US > newest
  newest = number
  newest_text = number == now_us and #time[2] == 6 and time[1] .. time[2] or digits(number)
  return added, life, stale
end

-- Gives the set and the hash the life that they are to have.
local function keep_seated(life, stale)
  if life then
    redis.call('PEXPIRE', holders, life)
  end
  if stale then
    redis.call('PEXPIRE', meta, idle_life(longest))
  end
end

local function is_live(token)
  return tonumber(redis.call('ZSCORE', holders, token) or 0) > now_ms
end

-- What the hash says of a holder: its fencing token, and its mark, or an empty text; 0 if the hash was deleted.
local function parts_of(terms)
  local number, mark = string.match(terms or '', '^%d+ (%d+) ?(%u?)$')
  return tonumber(number) or 0, mark or ''
end

-- Returns the same of the lease that a holder has, or nothing.
local function fence_of(token)
  if is_live(token) then
    return parts_of(redis.call('HMGET', meta, token)[1])
  end
end

-- ms until the first lease can end; -2 when there is none.
local function busy_for()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return first and math.max(tonumber(first) - now_ms, 0) or -2 -- equivalent: 1, then the answer is more
end

-- Keys outlive what they tell, and never lose time. PEXPIRE goes first, as it is allowed at the memory limit.
local function keep(ttl_ms)
  redis.call('PEXPIRE', holders, math.max(redis.call('PTTL', holders), tonumber(ttl_ms)))
  redis.call('PEXPIRE', meta, idle_life(math.max(longest, tonumber(ttl_ms))))
end

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(token, ttl_ms)
  keep(ttl_ms) -- defect: W9-extend
  redis.call('ZADD', holders, 'XX', 'GT', now_ms + tonumber(ttl_ms), token) -- defect: P3-extend
  if tonumber(ttl_ms) > longest then
    longest = tonumber(ttl_ms)
    if described then
      redis.call('HSET', meta, 'ttl', longest)
    end
    keep(ttl_ms)
  end
end

-- Extends a lease that is live, without a mark, and lasts no longer than others have; says whether that was done.
local function extend_as_usual(token, ttl_ms)
  local known = redis.call('HMGET', meta, 'ttl', token, 'limit')
  longest, limit_text = tonumber(known[1] or 0), known[3]
  if tonumber(ttl_ms) <= longest and not string.find(known[2] or '', ' %u') and is_live(token) then -- defect: W21-usual
    extend(token, ttl_ms)
    return true
  end
end

-- Keeps a lease whose holder lets go of it in the way of others until *min_hold_ms* after its grant, and returns for how
-- long that is, in ms; 0 if that was done before, and nothing changes; or nothing, if it is to be released as any other. A
-- clock that was stepped makes that time no longer than *min_hold_ms* from now on. *terms* is what the hash says of it.
local function cool(token, terms, min_hold_ms)
  local number, mark = parts_of(terms)
  if mark == 'C' and is_live(token) then
    return 0
  end
  if min_hold_ms and number > 0 and mark == '' and is_live(token) then
    local left_ms = math.floor(math.min(number - now_us, 0) / 1000) + min_hold_ms
    if left_ms > 0 then
      keep(left_ms) -- first a write that is allowed at the memory limit: then so are all others
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

-- Looks at the leases from the place *first* on. Returns how many of them were released and are kept by min_hold alone;
-- when the last of these ends (ms), or 0; and the place to go on from, or 0 after the last lease.
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
    if mark == 'C' and ends > now_ms then
      kept, last = kept + 1, ends -- in the order in which they end
    end
  end
  return kept, last, #tokens == MOST and from + MOST or 0
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
