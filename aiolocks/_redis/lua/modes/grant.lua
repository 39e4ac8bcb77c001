-- Grant a mode to one holder, or put it in the queue, or say that others are in the way.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    fence, ttl, held; and token -> `mode fence`
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  there when this token was withdrawn
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  mode       int     what for; see `libraries/shared`
-- ARGV[4]  ticket     int     the place this token had before, or 0; 1 is before all others; its complement (-1, …): only ask
-- ARGV[5]  session    bytes   whom to tell
-- ARGV[6]  channels   bytes   start of every session's channel
-- ARGV[7]  life_ms    int     how long the session is taken for alive without a re-check
-- returns  fencing token, when nobody was in the way; else
--          {'granted', fencing token, grants for this session…: of each its token, fencing token, ttl_ms}
--          {'queued', ticket, ms until a lease can end, last fencing token, subscribers, grants…}
--          {'busy', ms until a lease can end, grants…}
--          {'refused', 0, grants…} when there is nothing to upgrade, or {'withdrawn'}
-- uses     clock, digits, shared
local there = redis.call('EXISTS', queue, waiters, tombstone)
if there == 0 and not redis.call('ZSCORE', holders, token) and admits(tonumber(mode), token) == 'yes' then
  local number = grant(token, ttl_ms, mode)
  return number
end

-- uses     room, queue, leave, ticket, enqueue, hand_over
if redis.call('EXISTS', tombstone) == 1 then
  return { 'withdrawn' } -- this request was overtaken by its own undo
end
local wait = string.sub(ticket, 1, 1) ~= '-'
local entry = token .. ' ' .. ttl_ms .. ' ' .. mode .. ROOM
local number = fence_of(token)
if number then
  extend(token, ttl_ms) -- asked again, because the first answer was lost or is old: the same grant
  leave(entry)
  if number == 0 then -- the hash was deleted: nobody knows any more with which one it was granted, nor in which mode
    held[EXCLUSIVE] = math.max(held[EXCLUSIVE] - 1, 0) -- as which it was counted
    number = math.max(newest + 1, now_us)
    newest = number
    note(token, tonumber(mode), digits(number))
  end
  return { 'granted', number, {} }
end
local verdict, amount = admits(tonumber(mode), token)
if verdict == 'never' then
  leave(entry)
  return { 'refused', amount, {} }
end
local place_in_line
if wait then
  place_in_line = enqueue(entry, ticket, there == 2)
end
local mine = {}
if verdict == 'later' or (ticket ~= '1' and ticket ~= '-2') then
  hand_over(mine)
  number = fence_of(token)
  verdict = redis.call('EXISTS', queue) == 0 and admits(tonumber(mode), token) or 'later'
end
if not number and verdict == 'yes' then
  number = grant(token, ttl_ms, mode)
  leave(entry)
end
if backlog then
  hand_over(mine) -- which says that there is more to come
end
if number then
  return { 'granted', number, mine }
elseif wait then
  return { 'queued', place_in_line, busy_for(), newest, subscribers(session), mine }
end
return { 'busy', busy_for(), mine }
