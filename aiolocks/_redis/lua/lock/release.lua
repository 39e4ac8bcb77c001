-- Undo whatever the token has: its lease, its place in the queue, or a request still on its way. Then hand over.
--
-- KEYS[1]  holder        string  `token fence [mark]` of the current holder
-- KEYS[2]  fence         string  last fencing token
-- KEYS[3]  queue         zset    session -> ticket of its first waiter
-- KEYS[4]  waiters       zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone     string  keeps a late request of this token from being granted; left out if tombstone_ms is 0
-- ARGV[1]  token         bytes   who asks
-- ARGV[2]  terms         bytes   `ttl_ms permits`, as it asked for
-- ARGV[3]  tombstone_ms  int     how long a late request may come, or 0 when none can
-- ARGV[4]  session       bytes   who asks
-- ARGV[5]  channels      bytes   start of every session's channel
-- ARGV[6]  life_ms       int     how long the session is taken for alive without a re-check
-- ARGV[7]  min_hold_ms   int     for how long from the grant on the lease is in the way of others, though it is released
--                                earlier; left out: it ends at once
-- returns  1 when this ended a live lease, or it was released before and is in the way still, else 0; or that and, in one
--          text, the grants for this session: of each its token, fencing token, ttl_ms; or -3 and the ms after which to
--          look again in place of the last two
-- uses     numbers, mutex, queue, hand_over
local value = redis.call('GET', holder)
local mine = value and (value == token or string.sub(value, 1, #token + 1) == token .. ' ') -- defect: P10-release
local ended = 0
local rank, left_ms
if mine and (min_hold_ms or string.byte(value, -1) == 67) then
  -- slow path: the name stays taken, or does so already (67 is C)
  left_ms = cool(value, min_hold_ms)
end
if left_ms then
  ended = 1
elseif mine then
  local existing = tombstone_ms == '0' and redis.pcall('EXISTS', queue, waiters)
  rank = existing == 2 and redis.pcall('ZRANK', queue, session) or nil
  if rank == 0 then
    -- slow path: the next in line is of this session
    local reply = hand_on(tonumber(string.sub(value, #token + 2)))
    if reply then
      return reply
    end
  end
  redis.call('DEL', holder) -- defect: W9-release
  if existing == 0 then
    return 1
  end
  value = nil
  ended = 1
else
  -- slow path: it may wait in line
  leave(token .. ' ' .. terms .. PADDING) -- defect: W9-leave
end
if tombstone_ms ~= '0' then -- defect: P7-tombstone
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms)
end
if value and (not left_ms or left_ms == 0) then
  return ended
end

-- slow path: it is free, or it is known when it will be
local reply = { ended }
if left_ms then
  tell_when(reply, left_ms)
else
  hand_over(reply, rank) -- defect: W7-release
end
-- equivalent: constant, grants come in threes
return reply[2] and table.concat(reply, ' ') or ended -- for a list, Redis takes 16 KiB and another way to write
