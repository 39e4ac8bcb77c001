-- A name held in modes, some of which go together: leases whose hash has the last fencing token, the largest TTL ever
-- granted, how many hold each mode, and for each holder `mode fence`.
-- Needs the names: holders, meta; and `numbers` and `leases`.

-- What each mode may be held beside, by numbers: 1 IS and 2 IX announce 3 S (shared) and 6 X (exclusive) further down a
-- path, 4 SIX is both S and IX, and 5 U reads beside readers until it is upgraded. That is 7: exclusive but for the U it
-- grew from, whose token its own begins with.
local BESIDE = { '12345', '12', '135', '1', '13', '', '5' }
local EXCLUSIVE, UPGRADE = 6, 7

local known = redis.call('HMGET', meta, 'fence', 'ttl', 'held')
newest, longest, described = tonumber(known[1] or 0), tonumber(known[2] or 0), true
local held = {}
local counted = 0
for number in string.gmatch(known[3] or '0 0 0 0 0 0 0', '%d+') do
  held[#held + 1] = tonumber(number)
  counted = counted + tonumber(number)
end

-- A holder of which nothing is known any more, as the hash was deleted, may be any: it excludes all.
local function mode_of(token)
  return tonumber(string.match(redis.call('HMGET', meta, token)[1] or '', '^%d')) or EXCLUSIVE
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

-- A hash that was deleted is made anew with an end.
local function write(...)
  redis.call('HSET', meta, ...)
  if not known[1] then
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
  end
end

-- The set ends by itself when all leases in it have run out, and the hash may have been deleted: then the counts are
-- made anew. Where they cannot be written, as at the memory limit, the next script does so too.
local count = redis.call('ZCARD', holders)
if longest == 0 and count > 0 then
  longest = math.max(redis.call('PTTL', holders), 0) -- the hash was deleted: no lease lasts longer than their set
end
if counted ~= count then
  held = { 0, 0, 0, 0, 0, 0, 0 }
  if redis.call('EXISTS', meta) == 1 then
    -- slow path
    add(redis.call('ZRANGE', holders, 0, -1), 1)
  else
    held[EXCLUSIVE] = count -- the hash was deleted, and no holder has to be asked about
  end
  if count == 0 then
    redis.call('DEL', meta) -- and what is known of those who held
    redis.call('HSET', meta, 'fence', newest, 'ttl', longest)
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
  elseif known[1] then
    redis.pcall('HSET', meta, 'held', table.concat(held, ' '))
  end
end

-- Whatever looks at modes drops the leases that have run out. Nothing is written when none has, so that a request which the server
-- then refuses, for want of memory, has changed nothing.
local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', '0', MOST)
if ended[1] then
  -- slow path
  add(ended, -1)
  redis.call('ZREM', holders, spread(ended, 1, #ended))
  redis.call('HDEL', meta, spread(ended, 1, #ended))
  write('held', table.concat(held, ' '))
  count = count - #ended
  backlog = #ended == MOST
end

-- Ends the lease of a holder; returns 1 if it had one that was live.
local function drop(token)
  local mode, live = mode_of(token), not backlog or is_live(token)
  if redis.call('ZREM', holders, token) == 1 then
    redis.call('HDEL', meta, token)
    held[mode] = held[mode] - 1
    write('held', table.concat(held, ' '))
    return live and 1 or 0
  end
  return 0
end

local function note(token, mode, text)
  held[mode] = held[mode] + 1
  write('fence', newest, 'ttl', longest, 'held', table.concat(held, ' '), token, mode .. ' ' .. text)
end

-- Returns the fencing token, and the same as text.
local function grant(token, ttl_ms, mode)
  local number = math.max(newest + 1, now_us)
  local text = digits(number)
  redis.call('ZADD', holders, 'GT', now_ms + tonumber(ttl_ms), token)
  newest, longest = number, math.max(longest, tonumber(ttl_ms))
  note(token, tonumber(mode), text)
  keep(ttl_ms)
  return number, text
end

-- Can this mode be had now? 'yes', 'later' or 'never'; and 0 when nothing else can be had either.
local function can_grant(mode, token)
  if mode == UPGRADE then
    -- slow path
    local upgradeable = string.match(token, '^(.-)%+') or ''
    if not is_live(upgradeable) or mode_of(upgradeable) ~= 5 then
      return 'never', 0
    end
  end
  for other, count in ipairs(held) do
    if count > 0 and not string.find(BESIDE[mode], other, 1, true) then
      -- slow path
      clamp()
      return 'later', held[EXCLUSIVE] + held[UPGRADE] == 0 and 1 or 0
    end
  end
  return 'yes', 1
end

local full -- only `can_grant` says so
local take_back = drop
