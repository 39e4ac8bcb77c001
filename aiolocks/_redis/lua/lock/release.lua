-- Undo a request: end its lease, take it out of the queue, or stop it if it arrives late. Then hand over.
--
-- KEYS[1]  holder        string  `token fence [mark]` of the current holder
-- KEYS[2]  fence         string  last fencing token
-- KEYS[3]  queue         zset    session -> ticket of its first waiter
-- KEYS[4]  waiters       zset    entry of each waiter of this session -> ticket
-- KEYS[5]  tombstone     string  stops late requests of this token; left out if tombstone_ms is 0
-- ARGV[1]  token         bytes   token of the request
-- ARGV[2]  terms         bytes   `ttl_ms permits`, as it asked for
-- ARGV[3]  tombstone_ms  int     how long a late request can arrive, or 0 if none can
-- ARGV[4]  address       bytes   the session that asks; see `libraries/address`
-- ARGV[5]  waits         int     1 if the session knows of waiters of its own, else 0
-- ARGV[6]  min_hold_ms   int     the lease blocks others until so long after its grant; left out: it ends at once
-- returns  1 if this ended a live lease, or the lease is cooling, else 0; or one text with that number and the grants
--          for this session: the token, the fencing token and the ttl_ms of each, or a notice of `hand_over` (-2: more,
--          -3: later)
-- uses     numbers, address, mutex, queue, hand_over
local value = redis.call('GET', holder)
-- defect: P10-release
local mine = value and (value == token or fenced and string.sub(value, 1, #token + 1) == token .. ' ')
local ended = 0
local rank, left_ms
if mine and (min_hold_ms or string.byte(value, -1) == 67) then
  -- slow path: W18: the name stays taken, or is so already (67 is C)
  left_ms = cool(value, min_hold_ms)
end
if left_ms then
  ended = 1
elseif mine then
  if waits == '1' and tombstone_ms == '0' then
    -- slow path: the next waiter can be of this session
    rank = redis.pcall('ZRANK', queue, session)
    local reply = rank == 0 and hand_to_own_next(tonumber(string.sub(value, #token + 2)))
    if reply then
      return reply
    end
  end
  redis.call('DEL', holder) -- defect: W9-release
  if not rank and tombstone_ms == '0' and redis.pcall('EXISTS', queue, waiters) == 0 then
    return 1
  end
  value = nil
  ended = 1
else
  -- slow path: it can be in the queue
  leave(token .. ' ' .. terms .. PADDING) -- defect: W9-leave
end
if tombstone_ms ~= '0' then -- defect: P7-tombstone
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms)
end
if value and (not left_ms or left_ms == 0) then
  return ended
end

-- slow path: W7: it is free, or it is known when it will be
local reply = { ended }
if left_ms then
  stand_again()
  tell_when(reply, left_ms)
else
  hand_over(reply, rank) -- defect: W7-release
end
-- equivalent: constant, grants come in threes
return reply[2] and table.concat(reply, ' ') or ended -- a list would take Redis 16 KiB and a second write
