-- Undo a request: return its permits, take it out of the queue, or stop it if it arrives late. Then hand over.
--
-- KEYS[1]  holders       zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta          hash    limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue         zset    session -> ticket of its first waiter
-- KEYS[4]  waiters       zset    entry of each waiter of this session -> ticket
-- KEYS[5]  tombstone     string  stops late requests of this token; left out if tombstone_ms is 0
-- ARGV[1]  token         bytes   token of the request
-- ARGV[2]  terms         bytes   `ttl_ms permits`, as it asked for
-- ARGV[3]  tombstone_ms  int     how long a late request can arrive, or 0 if none can
-- ARGV[4]  address       bytes   the session that asks; see `libraries/address`
-- ARGV[5]  waits         int     1 if the session knows of waiters of its own, else 0
-- ARGV[6]  min_hold_ms   int     as in `lock/release`; or below 0: it blocks others for so long from now (W28)
-- returns  as `lock/release`
-- If the count is known and no session waits, only the count changes. No lease has ended if the first has not.
local known = redis.call('HMGET', meta, token, 'used', 'fence', 'line') -- defect: P9-known
local weight = string.match(known[1] or '', '^(%d+) %d+ ?R?$') -- not if it is cooling or offered
local used, members, witness, ends, more = string.match(known[2] or '', '^(%d+) (%d+) (%d+) (%d+)(.*)')
local alone = weight and not min_hold_ms and witness and witness == known[3] and tombstone_ms == '0'
  and not (known[4] and (waits == '1' or redis.call('EXISTS', queue, waiters) > 0))
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
-- uses     numbers, address, leases, semaphore, books, queue, hand_over, undo
