-- Grant the lock to one holder, or put it in the queue, or say that it is busy.
--
-- KEYS[1]  holder     string  `token fence [mark]` of the current holder; its TTL is the lease
-- KEYS[2]  fence      string  last fencing token; outlives the last grant by a day
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  there when this token was withdrawn
-- KEYS[6]  highest    string  the newest ticket of all, for a day
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  permits    int     always 1
-- ARGV[4]  ticket     int     the place this token had before, or 0; its complement (-1, …): only ask;
--                             or +, when it asks for the first time and a short answer will do
-- ARGV[5]  session    bytes   whom to tell
-- ARGV[6]  channels   bytes   start of every session's channel
-- ARGV[7]  life_ms    int     how long the session is taken for alive without a re-check
-- ARGV[8]  needed_s   int     the uptime in seconds that the server must have; left out: any will do, and so it is if
--                             the ticket is +
-- returns  fencing token, when nothing was in the way; or minus the ticket, the short answer that it waits; else
--          {'granted', fencing token, grants for this session: of each its token, fencing token, ttl_ms}
--          {'queued', ticket, ms until the holder's lease can end, last fencing token, subscribers, grants…}
--          {'busy', ms until the holder's lease can end, grants…};
--          {'withdrawn'}, when this token is granted nothing any more: it was undone, or its lease is revoked;
--          {'young', ms until the server has that uptime, grants…}, when that alone is in the way;
--          where it is free, and the server too young for the first in line, its ms stand in place of the lease's;
--          where there are no grants, 0 may stand for the list
-- uses     numbers, mutex, queue, hand_over
local missing_s = 0 -- seconds of uptime
if needed_s then
  -- slow path
  local up = seconds_up()
  if not up then
    return uptime_unknown() -- before anything is written
  end
  missing_s = needed_s - up
end
-- defect: W10-existing
local existing = redis.call('EXISTS', holder, queue, waiters, tombstone, tombstone, tombstone, tombstone) -- 4 times
if existing == 0 and missing_s <= 0 then -- defect: W10-free
  return (grant(token, ttl_ms))
end

local entry = token .. ' ' .. ttl_ms .. ' ' .. permits .. PADDING
if ticket == '+' then
  -- slow path: it has to wait, and a short answer may do; not where its own token holds the lock, as it was long on its
  -- way and a later request came first, nor where that is buried
  local value = existing == 3 and redis.call('GET', holder)
  local place = value and string.sub(value, 1, #token) ~= token and enqueue_behind_own(entry) -- defect: W10-brief
  if place then
    return -place
  end
  ticket = '0'
end

-- slow path: there is more to do, or to say
if redis.call('EXISTS', tombstone) == 1 then -- defect: W10-buried
  return { 'withdrawn' } -- this request was overtaken by its own undo
end
local young = missing_s > 0
if needed_s then
  entry = token .. ' ' .. ttl_ms .. ' ' .. permits .. ' ' .. needed_s .. PADDING
  young_ms = young and 1000 * missing_s or young_ms
end
local owner, number, mark = held_by()
if owner == token and mark ~= '' then
  return { 'withdrawn' } -- else it would wait in line behind itself
elseif owner == token then
  -- slow path: asked again, because the first answer was lost or is old: the same grant
  extend(token, ttl_ms)
  leave(entry)
  return { 'granted', number, 0 } -- defect: W10-fence
end

if not owner then
  last_fence() -- a key of another type is an error before anything is changed
end
local place_in_line, busy_ms
if string.sub(ticket, 1, 1) ~= '-' then
  -- slow path: it waits
  place_in_line, busy_ms = enqueue(entry, ticket, owner and existing == 3)
end
if owner and place_in_line then
  -- defect: W5-queued, W1-grant
  return { 'queued', place_in_line, busy_ms, last_fence(number), subscribers(session), 0 }
elseif owner then
  return { 'busy', busy_for(), 0 }
end

-- slow path: it is free, and others may have waited for longer
local grants = {}
hand_over(grants) -- defect: W7-grant
owner, number = held_by()
-- defect: W21-past-queue
if not owner and not more and not held_back and not young then -- no session that could be told was in the queue
  number = grant(token, ttl_ms)
  owner = token
end
if owner == token then
  return { 'granted', number, grants }
elseif place_in_line then
  return { 'queued', place_in_line, not_before(), last_fence(number), subscribers(session), grants }
end
return { young and not owner and 'young' or 'busy', not_before(), grants }
