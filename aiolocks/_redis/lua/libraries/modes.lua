-- A name held in modes, some of which go together: leases whose hash has the last fencing token, the largest TTL ever
-- granted; for each holder `mode fence`; `line`, where there may be a queue; and `held`: the last fencing token at the
-- time when the holders of each mode were counted, when the first lease ends at the earliest, and until when the set
-- lives at least (ms), and `mode:holders` for each mode that is held. `asking` is the token that asks, if one does.
-- Needs the names: holders, meta, asking; and `numbers` and `leases`.

-- What each mode may be held beside, by numbers: 1 IS and 2 IX announce 3 S (shared) and 6 X (exclusive) further down a
-- path, 4 SIX is both S and IX, and 5 U reads beside readers until it is upgraded. That is 7: exclusive but for the U it
-- grew from, whose token its own begins with.
local BESIDE = { '12345', '12', '135', '1', '13', '', '5' } -- defect: modes-beside
local EXCLUSIVE, UPGRADE = 6, 7

-- To add 0 makes a number of a text in half the time of `tonumber`.
local known = redis.call('HMGET', meta, 'fence', 'ttl', 'held', 'line', asking)
newest, longest, described = (known[1] or 0) + 0, (known[2] or 0) + 0, true
newest_text = known[1]
local in_line, own = known[4], known[5]

-- The numbers are never too small while their fencing token is the last one: only a grant adds to them, and each writes
-- both at once. An older version of these scripts writes them in another way, which is not read; and what it takes away,
-- or Redis does with the whole set, shows in the number of holders, which is compared before a request is refused.
local held = { 0, 0, 0, 0, 0, 0, 0 }
local witness, pairs_held
witness, first_end, kept_until, pairs_held = string.match(known[3] or '', '^(%d+) (%d+) (%d+)([ :%d]*) ')
local counted = witness and witness == known[1]
first_end, kept_until = first_end or 0, kept_until or 0
for mode, number in string.gmatch(pairs_held or '', '(%d):(%d+)') do
  held[mode + 0] = number + 0
  members = members + number
end

-- Whether they can be relied on, and no lease has run out: then each that is there is live.
local sure = counted and first_end - now_ms > 0 and first_end - now_ms <= longest

-- What is held, as `mode:holders`, between the witness with both instants and what makes it longer than 64 bytes: then
-- Redis keeps the hash as a table, while it would read through up to 128 short fields, packed one behind the other, for
-- every one that is asked for.
local DOTS = ' ..............................'

local function numbers_held()
  unwritten = false
  local text = (newest_text or '0') .. ' ' .. first_end .. ' ' .. kept_until
  for mode = 1, 7 do
    if held[mode] > 0 then
      text = text .. ' ' .. mode .. ':' .. held[mode]
    end
  end
  return text .. DOTS
end

-- Whether this mode may be held beside all that is held.
local function fits(mode)
  local beside = BESIDE[mode]
  for other = 1, 7 do
    if held[other] > 0 and not string.find(beside, other, 1, true) then
      return false
    end
  end
  return true
end

-- Returns the fencing token, and the same as text.
local function grant(token, ttl_ms, mode)
  local added, life, stale = seat(token, ttl_ms)
  mode = tonumber(mode)
  held[mode] = held[mode] + added
  if ttl_ms - longest > 0 then
    longest = tonumber(ttl_ms)
    redis.call('HSET', meta, 'ttl', longest)
  end
  redis.call('HSET', meta, 'fence', newest_text, 'held', numbers_held(), token, mode .. ' ' .. newest_text)
  keep_seated(life, stale)
  return newest, newest_text
end

-- A hash that was deleted is made anew with an end.
local function write(...)
  redis.call('HSET', meta, ...)
  if not known[1] then -- equivalent: constant, both are written together
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
  end
end

-- Writes down the numbers.
local function note()
  write('fence', newest_text or '0', 'ttl', longest, 'held', numbers_held())
end

-- A holder of which nothing is known any more, as the hash was deleted, may be any: it excludes all.
local function mode_of(token)
  local terms = token == asking and own or redis.call('HMGET', meta, token)[1]
  return tonumber(string.match(terms or '', '^%d')) or EXCLUSIVE
end

-- Counts these holders in, or out.
local function add(tokens, one)
  for from = 1, #tokens, MOST do
    for _, terms in ipairs(redis.call('HMGET', meta, spread(tokens, from, math.min(from + MOST - 1, #tokens)))) do
      local mode = terms and string.byte(terms) - 48 or EXCLUSIVE -- a mode is one digit
      held[mode] = held[mode] + one
    end
  end
end

-- Counts anew what is held.
local function count_anew(count)
  local left = math.max(redis.call('PTTL', holders), 0)
  held = { 0, 0, 0, 0, 0, 0, 0 }
  members, kept_until = count, now_ms + left
  -- equivalent: constant, no lease is so short
  longest = longest > 0 and longest or left -- the hash was deleted: no lease lasts longer than their set
  if redis.call('EXISTS', meta) == 1 then
    add(redis.call('ZRANGE', holders, 0, -1), 1)
  else
    held[EXCLUSIVE] = count -- the hash was deleted, and no holder has to be asked about
  end
end

-- Drops the leases that have run out.
local function drop_ended()
  local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', '0', MOST)
  if ended[1] then
    add(ended, -1)
    redis.call('ZREM', holders, spread(ended, 1, #ended))
    redis.call('HDEL', meta, spread(ended, 1, #ended))
    members = members - #ended
  end
  backlog = #ended == MOST
  first_end = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0
  return ended[1]
end

-- Every script that does not know the numbers for sure goes through here. The set ends by itself when all leases in it
-- have run out, and the hash may have been deleted: then they are made anew. Where they cannot be written, as at the
-- memory limit, the next script does so too. Nothing is changed when no lease has run out, so that a request which the
-- server then refuses, for want of memory, has changed nothing.
local function settle()
  settled = true
  local count = redis.call('ZCARD', holders)
  if count == 0 then
    held = { 0, 0, 0, 0, 0, 0, 0 }
    if members > 0 or (known[3] and not counted) then
      redis.call('DEL', meta) -- and what is known of those who held
      redis.call('HSET', meta, 'fence', newest, 'ttl', longest, 'line', '1')
      redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
    end
    members, first_end, kept_until = 0, 0, 0
    return
  end
  local anew = members ~= count or not counted
  if anew then
    -- slow path
    count_anew(count)
  end
  if anew or first_end - now_ms <= 0 or first_end - now_ms > longest then
    -- slow path
    if drop_ended() then
      note()
    elseif known[1] then -- equivalent: constant, both are written together
      redis.pcall('HSET', meta, 'held', numbers_held())
    end
  end
end

-- Lets releases know that there may be a queue to hand over to.
local function expect_queue()
  if not in_line then
    -- equivalent: constant, any text
    redis.pcall('HSET', meta, 'line', '1') -- where that is refused, as at the memory limit, a re-check hands over
    in_line = '1' -- equivalent: line dropped, only written again
    if not known[1] then -- equivalent: constant, both are written together
      redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
    end
  end
end

-- Ends the lease of a holder, and says whether it had one that was live.
local function drop(token)
  local mode, live = mode_of(token), not backlog or is_live(token)
  if redis.call('ZREM', holders, token) == 0 then
    return false
  end
  redis.call('HDEL', meta, token)
  members, held[mode], unwritten = members - 1, held[mode] - 1, true
  return live
end

local function take_back(token)
  drop(token)
  note()
end

local full -- only `can_grant` says so, as the next in line may be an upgrade that is to be refused

-- Can this mode be had now? 'yes', 'later' or 'never'; and 0 when nothing else can be had either, or with 'never' -1 when
-- what is to be upgraded was revoked. *head*: this token is the first in line.
local function can_grant(mode, token, head)
  if mode == UPGRADE then
    -- slow path
    local upgradeable = string.match(token, '^(.-)%+') or ''
    local _, mark = fence_of(upgradeable)
    if mark ~= '' or mode_of(upgradeable) ~= 5 then -- nil: it is not live
      return 'never', mark == 'R' and -1 or 0
    end
  end
  if fits(mode) then
    return 'yes', 1
  end
  -- slow path
  if not settled then
    settle()
    if fits(mode) then
      return 'yes', 1
    end
  end
  first_end = clamp() or first_end
  if head then
    expect_queue()
  end
  return 'later', held[EXCLUSIVE] + held[UPGRADE] == 0 and 1 or 0 -- equivalent: 2, any number but 0
end
