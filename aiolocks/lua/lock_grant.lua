-- Grant the lock to one holder, or put it in the queue, or say that it is busy.
--
-- KEYS[1]  holder     string  `token fence` of the current holder; its TTL is the lease
-- KEYS[2]  fence      string  last fencing token; outlives the last grant by a day
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  there when this token was withdrawn
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  permits    int     always 1
-- ARGV[4]  wait       int     1: queue when busy; 0: only ask
-- ARGV[5]  ticket     int     the place this token had before, or 0
-- ARGV[6]  session    bytes   whom to tell
-- ARGV[7]  channels   bytes   start of every session's channel
-- ARGV[8]  life_ms    int     how long the session is taken for alive without a re-check
-- returns  fencing token, when nobody was in the way; else
--          {'granted', fencing token, grants for this session}
--          {'queued', ticket, ms until the holder's lease can end, last fencing token, subscribers, grants…}
--          {'busy', ms until the holder's lease can end, grants…} or {'withdrawn'}
-- uses     clock, fence
if redis.call('EXISTS', holder, queue, waiters, tombstone) == 0 then
  local number, text = next_fence()
  grant(token, ttl_ms, permits, number, text)
  return number
end

-- uses     lock, queue, enqueue
if redis.call('EXISTS', tombstone) == 1 then
  return { 'withdrawn' } -- this request was overtaken by its own undo
end
local entry = token .. ' ' .. ttl_ms .. ' ' .. permits
local owner, number = held_by()
if owner == token then
  extend(ttl_ms) -- asked again, because the first answer was lost or is old: the same grant
  leave(entry)
  return { 'granted', number, {} }
end

if not owner then
  last_fence() -- a key of another type is an error before anything is changed
end
local place_in_line, busy_ms
if wait == '1' then
  place_in_line, busy_ms = enqueue(entry, ticket)
end
if owner and wait == '1' then
  return { 'queued', place_in_line, busy_ms, last_fence(number), subscribers(session), {} }
elseif owner then
  return { 'busy', busy_for(), {} }
end

-- uses     hand_over
local mine = {}
if wait == '0' then
  keep_queue() -- whoever of this session was passed over can be reached by this very answer
end
hand_over(mine)
owner, number = held_by()
if not owner then -- nobody in the queue was alive
  local text
  number, text = next_fence()
  grant(token, ttl_ms, permits, number, text)
  owner = token
end
if owner == token then
  return { 'granted', number, mine }
elseif wait == '1' then
  return { 'queued', place_in_line, busy_for(), last_fence(number), subscribers(session), mine }
end
return { 'busy', busy_for(), mine }
