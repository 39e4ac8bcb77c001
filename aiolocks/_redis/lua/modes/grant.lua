-- Grant a mode to one holder, or add it to the queue, or report that it does not fit.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of each waiter of this session -> ticket
-- KEYS[5]  tombstone  string  exists if this token was withdrawn
-- KEYS[6]  highest    string  the newest ticket of all, for a day
-- ARGV[1]  token      bytes   token of the request
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  mode       int     see `libraries/modes`
-- ARGV[4]  ticket     int     as in `lock/grant`, but never +; or 1: before all others
-- ARGV[5]  address    bytes   the session that asks; see `libraries/address`
-- ARGV[6]  needed_s   int     minimum uptime of the server in seconds; left out: any
-- returns  as `lock/grant`, but never the short reply; or
--          {'refused', 0, grants…} if there is nothing to upgrade, or -1 in place of 0 if that is revoked
local asking = token
-- uses     numbers, address, leases, modes, books, queue, hand_over, newcomer
-- The set counts four times.
-- defect: modes-queue
local existing = redis.call('EXISTS', queue, waiters, tombstone, holders, holders, holders, holders)
if
  (existing == 4 and sure and not own or existing == 0 and members == 0 and (counted or not noted))
  and mode ~= '7' and young_ms < 0 and (members == 0 or fits(mode + 0))
then
  if ttl_ms - longest ~= 0 or now_us <= newest or members == 0 and counted then
    -- slow path: more than usual is to be written
    return (grant(token, ttl_ms, mode))
  end
  -- `grant` for the usual case, which makes an acquire and a release 7 % faster.
  local text = #time[2] == 6 and time[1] .. time[2] or string.format('%.0f', now_us)
  local ends = now_ms + ttl_ms .. ''
  local life = members == 0 and ttl_ms
  if life then
    first_end, kept_until = ends, ends
  elseif ends - kept_until > 0 then -- equivalent: constant, a millisecond
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
    redis.call('PEXPIRE', holders, life .. '')
  end
  if now_us - now_us % MINUTE_US > newest then
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest) .. '')
  end
  return now_us
end

-- slow path: there is more to do, or to say
local entry = token .. ' ' .. ttl_ms .. ' ' .. mode .. (needed_s and ' ' .. needed_s or '') .. PADDING
local sort = string.sub(ticket, 1, 1)
if sort == '<' and existing > 4 and sure and not own and mode ~= '7' and not fits(mode + 0) then
  -- slow path: W26: it has to wait, so the waiters are counted first, which is faster. An upgrade may have to be refused
  local waiting = too_many(entry)
  if waiting then
    return { 'full', not_before(), {}, waiting }
  end
end

-- slow path: it does not fit, or was asked for before, or the counts are not known for sure, or the server is too young
local young = young_ms > 0
settle()
local _, mark = parts_of(own)
if redis.call('EXISTS', tombstone) == 1 or mark ~= '' then -- defect: W10-buried
  return { 'withdrawn' }
end
local wait = sort ~= '-'
local number = fence_of(token)
if number then
  extend(token, ttl_ms) -- P6: asked again, because the first reply was lost or is old: the same grant
  leave(entry)
  if number == 0 then
    -- slow path
    number = describe_again(token, mode)
  end
  return { 'granted', number, {} }
end
local verdict, amount = can_grant(mode, token)
if verdict == 'never' then
  leave(entry)
  return { 'refused', amount, {} }
end
local most, waiting, place_in_line
if sort == '<' then
  -- slow path: W26: the others are counted once what is free was handed over (W7)
  most, ticket = room_for(entry), '0'
  wait = not most
end
if wait then
  place_in_line = enqueue(entry, ticket, redis.call('EXISTS', queue, waiters) == 2)
  expect_queue()
end
local grants = {}
if verdict == 'later' or (ticket ~= '1' and ticket ~= '-2') then
  hand_over(grants, most and -1) -- -1: `room_for` has put this session back, if it has waiters
  number = fence_of(token)
  if number then
    extend(token, ttl_ms) -- perhaps by its entry in the line of a former name, and for a short time (W11, W15)
    leave(entry)
  end
  verdict = redis.call('EXISTS', queue) == 0 and can_grant(mode, token) or 'later'
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
elseif most then
  -- slow path: W26
  waiting = crowd(most)
  if not waiting then
    place_in_line = enqueue(entry, ticket)
    expect_queue()
  end
end
if place_in_line then
  return { 'queued', place_in_line, not_before(), newest, subscribers(session), grants }
end
return { waiting and 'full' or verdict == 'yes' and 'young' or 'busy', not_before(), grants, waiting }
