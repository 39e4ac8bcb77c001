-- A name held in modes, some of which go together. A sorted set of holders' tokens, scored with the server's own time
-- (ms) at which each lease ends. Beside it one hash: the last fencing token, the largest TTL ever granted, how many hold
-- each mode, and for each holder `mode fence`.
-- Needs the names: holders, meta.

-- What each mode may be held beside, by numbers: 1 IS and 2 IX announce 3 S (shared) and 6 X (exclusive) further down a
-- path, 4 SIX is both S and IX, and 5 U reads beside readers until it is upgraded. That is 7: exclusive but for the U it
-- grew from, whose token its own begins with.
local BESIDE = { '12345', '12', '135', '1', '13', '', '5' }
local EXCLUSIVE, UPGRADE = 6, 7
local MOST = 500 -- holders that are asked about, or whose leases that ran out are dropped, at once

local now_us = micros()
local now_ms = math.floor(now_us / 1000)
local known = redis.call('HMGET', meta, 'fence', 'ttl', 'held')
local newest = tonumber(known[1] or 0)
local longest = tonumber(known[2] or 0)
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
    for _, terms in ipairs(redis.call('HMGET', meta, unpack(tokens, from, math.min(from + MOST - 1, #tokens)))) do
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

local function delete_fields(fields)
  for from = 1, #fields, MOST do
    redis.call('HDEL', meta, unpack(fields, from, math.min(from + MOST - 1, #fields)))
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
    add(redis.call('ZRANGE', holders, 0, -1), 1)
  else
    held[EXCLUSIVE] = count -- the hash was deleted, and nobody has to be asked about
  end
  if count == 0 then
    redis.call('DEL', meta) -- and what is known of those who held
    redis.call('HSET', meta, 'fence', newest, 'ttl', longest)
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
  elseif known[1] then
    redis.pcall('HSET', meta, 'held', table.concat(held, ' '))
  end
end

local backlog = false -- more leases have run out than one script drops
local full -- nothing but `admits` says so

-- Every script begins here. Nothing is written when no lease has run out, so that a request which the server then
-- refuses, for want of memory, has changed nothing.
local function drop_ended()
  local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', '0', MOST)
  if ended[1] then
    add(ended, -1)
    redis.call('ZREM', holders, unpack(ended))
    delete_fields(ended)
    write('held', table.concat(held, ' '))
    count = count - #ended
  end
  backlog = #ended == MOST
end
drop_ended()

local function is_live(token)
  return tonumber(redis.call('ZSCORE', holders, token) or 0) > now_ms
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

-- The fencing token of a holder's lease, or nothing.
local function fence_of(token)
  if is_live(token) then
    return tonumber(string.match(redis.call('HMGET', meta, token)[1] or '6 0', '%d+$'))
  end
end

-- Keys outlive what they tell, and never lose time. PEXPIRE goes first, as it is allowed at the memory limit.
local function keep(ttl_ms)
  redis.call('PEXPIRE', holders, math.max(redis.call('PTTL', holders), tonumber(ttl_ms)))
  redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * math.max(longest, tonumber(ttl_ms))))
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
  end
end

-- Can this mode be had now? 'yes', 'later' or 'never'; and 0 when nothing else can be had either.
local function admits(mode, token)
  if mode == UPGRADE then
    local upgradeable = string.match(token, '^(.-)%+') or ''
    if not is_live(upgradeable) or mode_of(upgradeable) ~= 5 then
      return 'never', 0
    end
  end
  for other, count in ipairs(held) do
    if count > 0 and not string.find(BESIDE[mode], other, 1, true) then
      clamp()
      return 'later', held[EXCLUSIVE] + held[UPGRADE] == 0 and 1 or 0
    end
  end
  return 'yes', 1
end

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(token, ttl_ms)
  keep(ttl_ms)
  redis.call('ZADD', holders, 'XX', 'GT', now_ms + tonumber(ttl_ms), token)
  if tonumber(ttl_ms) > longest then
    longest = tonumber(ttl_ms)
    write('ttl', longest)
    keep(ttl_ms)
  end
end

-- ms until the first lease can end; -2 when nobody holds one.
local function busy_for()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return first and math.max(tonumber(first) - now_ms, 0) or -2
end

local revoke = drop
