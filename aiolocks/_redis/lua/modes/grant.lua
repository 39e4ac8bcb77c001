-- Grant a mode to one holder, or put it in the queue, or say that others are in the way.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  there when this token was withdrawn
-- KEYS[6]  highest    string  the newest ticket of all, for a day
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  mode       int     what for; see `libraries/modes`
-- ARGV[4]  ticket     int     the place this token had before, or 0; 1: before all others; its complement (-1, …): only
--                             ask
-- ARGV[5]  session    bytes   whom to tell
-- ARGV[6]  channels   bytes   start of every session's channel
-- ARGV[7]  life_ms    int     how long the session is taken for alive without a re-check
-- ARGV[8]  needed_s   int     the uptime in seconds that the server must have; left out: any will do
-- returns  fencing token, when nothing was in the way; else
--          {'granted', fencing token, grants for this session…: of each its token, fencing token, ttl_ms}
--          {'queued', ticket, ms until a lease can end, last fencing token, subscribers, grants…}
--          {'busy', ms until a lease can end, grants…}
--          {'young', ms until the server has that uptime, grants…}, when that alone is in the way
--          {'refused', 0, grants…} when there is nothing to upgrade, or -1 in place of 0 when that is revoked;
--          {'withdrawn'}, when this token is granted nothing any more: it was undone, or its lease is revoked
local asking = token
-- uses     numbers, leases, modes, queue, hand_over
local missing_s = 0 -- seconds of uptime
if needed_s then
  -- slow path
  local up = seconds_up()
  if not up then
    return uptime_unknown() -- before anything is written
  end
  missing_s = needed_s - up
end
-- defect: modes-queue
local existing = redis.call('EXISTS', queue, waiters, tombstone, holders, holders, holders, holders) -- each time counts
if
  (existing == 4 and sure and not own or existing == 0 and members == 0 and (counted or not known[3]))
  and mode ~= '7' and missing_s <= 0 and (members == 0 or fits(tonumber(mode)))
then
  if ttl_ms - longest ~= 0 or now_us <= newest or members == 0 and counted then
    -- slow path: more is to be written down than usual
    return (grant(token, ttl_ms, mode))
  end
  -- The same as `grant` does, for the usual case, in four fifths of the time.
  local text = #time[2] == 6 and time[1] .. time[2] or string.format('%.0f', now_us)
  local ends = now_ms + ttl_ms .. ''
  local life = members == 0 and ttl_ms
  if life then
    first_end, kept_until = ends, ends
  elseif ends - kept_until > 0 then
    life = ttl_ms + math.floor(ttl_ms / 8)
    kept_until = now_ms + life
  end
  local numbers = text .. ' ' .. first_end .. ' ' .. kept_until
  held[mode + 0] = held[mode + 0] + 1
  for each = 1, 7 do
    if held[each] > 0 then
      numbers = numbers .. ' ' .. each .. ':' .. held[each]
    end
  end
  redis.call('ZADD', holders, 'GT', ends, token)
  redis.call('HSET', meta, 'fence', text, 'held', numbers .. DOTS, token, mode .. ' ' .. text)
  if life then
    redis.call('PEXPIRE', holders, life)
  end
  if now_us - now_us % MINUTE_US > newest then
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
  end
  return now_us
end

-- slow path: others are in the way, or it was asked for before, or the numbers are not known for sure, or the server is
-- too young
local entry = token .. ' ' .. ttl_ms .. ' ' .. mode .. PADDING
local young = missing_s > 0
if needed_s then
  entry = token .. ' ' .. ttl_ms .. ' ' .. mode .. ' ' .. needed_s .. PADDING
  young_ms = young and 1000 * missing_s or young_ms
end
settle()
if redis.call('EXISTS', tombstone) == 1 then
  return { 'withdrawn' } -- this request was overtaken by its own undo
end
local _, mark = parts_of(own)
if mark ~= '' then
  return { 'withdrawn' } -- else it would wait in line behind itself, or be granted anew
end
local wait = string.sub(ticket, 1, 1) ~= '-'
local number = fence_of(token)
if number then
  extend(token, ttl_ms) -- asked again, because the first answer was lost or is old: the same grant
  leave(entry)
  if number == 0 then -- the hash was deleted, and with it the token that it was granted with, and its mode
    held[EXCLUSIVE] = math.max(held[EXCLUSIVE] - 1, 0) -- as which it was counted
    held[tonumber(mode)] = held[tonumber(mode)] + 1
    number = math.max(newest + 1, now_us)
    newest, newest_text = number, digits(number)
    write(token, mode .. ' ' .. newest_text)
    note()
  end
  return { 'granted', number, {} }
end
local verdict, amount = can_grant(tonumber(mode), token)
if verdict == 'never' then
  leave(entry)
  return { 'refused', amount, {} }
end
local place_in_line
if wait then
  place_in_line = enqueue(entry, ticket, redis.call('EXISTS', queue, waiters) == 2)
  expect_queue()
end
local grants = {}
if verdict == 'later' or (ticket ~= '1' and ticket ~= '-2') then
  hand_over(grants)
  number = fence_of(token)
  verdict = redis.call('EXISTS', queue) == 0 and can_grant(tonumber(mode), token) or 'later'
end
if not number and verdict == 'yes' and not young then
  number = grant(token, ttl_ms, mode)
  leave(entry)
end
if backlog then
  hand_over(grants) -- which says that there is more to come
end
if number then
  return { 'granted', number, grants }
elseif wait then
  return { 'queued', place_in_line, not_before(), newest, subscribers(session), grants }
end
return { verdict == 'yes' and 'young' or 'busy', not_before(), grants }
