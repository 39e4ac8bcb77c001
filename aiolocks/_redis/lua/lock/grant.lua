-- Grant the lock to one holder, or add it to the queue, or report that it is busy.
--
-- KEYS[1]  holder     string  `token fence [mark]` of the current holder; its TTL is the lease
-- KEYS[2]  fence      string  last fencing token; outlives the last grant by a day
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of each waiter of this session -> ticket
-- KEYS[5]  tombstone  string  exists if this token was withdrawn
-- KEYS[6]  highest    string  the newest ticket of all, for a day
-- ARGV[1]  token      bytes   token of the request
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  permits    int     always 1
-- ARGV[4]  ticket     int     the ticket this token had before, or 0; its complement (-1, …): do not wait; or
--                             +: the first request of the token, for which a short reply is enough; or
--                             <20: the first request of the token, which waits only if fewer than 20 others wait
-- ARGV[5]  address    bytes   the session that asks; see `libraries/address`
-- ARGV[6]  needed_s   int     minimum uptime of the server in seconds; left out: any; never with the ticket +
-- returns  the fencing token if it was free; or minus the ticket, the short reply that the token waits; else
--          {'granted', fencing token, grants for this session: the token, fencing token and ttl_ms of each}
--          {'queued', ticket, ms until the holder's lease can end, last fencing token, subscribers, grants…}
--          {'busy', ms until the holder's lease can end, grants…};
--          {'full', the same ms, grants…, number of waiters} if as many wait as the ticket allows
--          {'withdrawn'} if nothing is granted to this token any more: it was undone, or its lease has a mark;
--          {'young', ms until the server has that uptime, grants…} if only the uptime is missing;
--          if it is free, and the server too young for the first waiter, its ms replace those of the lease;
--          without grants, 0 can replace the list
-- uses     numbers, address, mutex, queue, hand_over, newcomer
-- The tombstone counts four times.
-- defect: W10-existing
local existing = redis.call('EXISTS', holder, queue, waiters, tombstone, tombstone, tombstone, tombstone)
if existing == 0 and young_ms < 0 then -- defect: W10-free
  return (grant(token, ttl_ms))
end

local entry = token .. ' ' .. ttl_ms .. ' ' .. permits .. (needed_s and ' ' .. needed_s or '') .. PADDING
if ticket == '+' then
  -- slow path: it has to wait, and a short reply is enough. W10: not if its own token holds the lock, because a later
  -- request overtook this one; nor if that token is buried.
  local value = existing == 3 and redis.call('GET', holder)
  local place = value and string.sub(value, 1, #token) ~= token and enqueue_behind_own(entry) -- defect: W10-brief
  if place then
    return -place
  end
  ticket = '0'
end

-- slow path: there is more to do, or to say
local young = young_ms > 0
local owner, number, mark = held_by()
if redis.call('EXISTS', tombstone) == 1 or owner == token and mark ~= '' then -- defect: W10-buried
  return { 'withdrawn' }
elseif owner == token then
  -- slow path: P6: asked again, because the first reply was lost or is old: the same grant
  extend(token, ttl_ms)
  leave(entry)
  return { 'granted', number, 0 } -- defect: W10-fence
end

if not owner then
  last_fence() -- W9: a key of another type fails before anything is changed
end
local sort = string.sub(ticket, 1, 1)
local wait = sort ~= '-'
local most, waiting, place_in_line, busy_ms
if sort == '<' then
  -- slow path: W26: the others are counted, if it is free once it was handed over (W7)
  most, ticket = room_for(entry), '0'
  waiting = owner and most and crowd(most) or nil -- defect: W26-free
  wait = not most or owner and not waiting
end
if wait then
  -- slow path: it waits
  place_in_line, busy_ms = enqueue(entry, ticket, owner and existing == 3)
end
if owner and place_in_line then
  -- defect: W5-queued, W1-grant
  return { 'queued', place_in_line, busy_ms, last_fence(number), subscribers(session), 0 }
elseif owner then
  return { waiting and 'full' or 'busy', busy_for(), 0, waiting }
end

-- slow path: W7: it is free, and others may have waited for longer
local grants = {}
hand_over(grants) -- defect: W7-grant
owner, number = held_by()
if owner == token then
  -- slow path: perhaps by its entry in the line of a former name of the session, and for a short time (W11, W15)
  extend(token, ttl_ms)
  leave(entry)
end
-- defect: W21-past-queue
if not owner and not more and not held_back and not young then -- no session in the queue can be notified
  number = grant(token, ttl_ms)
  owner = token
end
if owner == token then
  return { 'granted', number, grants }
elseif most then
  -- slow path: W26
  waiting = crowd(most)
  place_in_line = not waiting and enqueue(entry, ticket)
end
if place_in_line then
  return { 'queued', place_in_line, not_before(), last_fence(number), subscribers(session), grants }
end
return { waiting and 'full' or young and not owner and 'young' or 'busy', not_before(), grants, waiting }
