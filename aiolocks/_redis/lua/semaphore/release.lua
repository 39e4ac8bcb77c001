-- Undo whatever the token has: its permits, its place in the queue, or a request still on its way. Then hand over.
--
-- KEYS[1]  holders       zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta          hash    limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
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
-- Where the number is known and none wait, it is all that changes. None has run out
-- where the first has not.
local known = redis.call('HMGET', meta, token, 'used', 'fence', 'line') -- defect: P9-known
local weight = string.match(known[1] or '', '^(%d+) %d+ ?R?$') -- not of one that was released before
local used, members, witness, ends, more = string.match(known[2] or '', '^(%d+) (%d+) (%d+) (%d+)(.*)')
local alone = weight and not min_hold_ms and witness and witness == known[3] and tombstone_ms == '0'
  and not (known[4] and redis.call('EXISTS', queue, waiters) > 0)
local time = alone and redis.call('TIME')
if alone and ends * 1000 > time[1] * 1000000 + time[2] and redis.call('ZREM', holders, token) == 1 then
  if members == '1' then
    redis.call('HDEL', meta, token, 'line', 'used')
  else
    redis.call('HDEL', meta, token, 'line')
    redis.call('HSET', meta, 'used', used - weight .. ' ' .. members - 1 .. ' ' .. witness .. ' ' .. ends .. more)
  end
  return 1
end

local asking = token
-- uses     numbers, leases, semaphore, queue, hand_over
if not sure or not own then
  -- slow path
  settle()
end
local left_ms = cool(token, own, min_hold_ms) -- defect: W9-release
local ended = (left_ms or drop(token)) and 1 or 0 -- first a write that is allowed at the memory limit: then so are all others
if ended == 0 then
  leave(token .. ' ' .. terms .. PADDING)
end
if tombstone_ms ~= '0' then -- defect: P7-tombstone
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms) -- defect: W9-tombstone
end
local reply = { ended }
hand_over(reply) -- defect: W7-release
if left_ms and left_ms > 0 then
  tell_when(reply, left_ms)
end
if unwritten then
  note()
end
-- equivalent: constant, grants come in threes
return reply[2] and table.concat(reply, ' ') or ended -- for a list, Redis takes 16 KiB and another way to write
