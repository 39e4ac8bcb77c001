-- Undo a request: end its lease, take it out of the queue, or stop it if it arrives late. Then hand over.
--
-- KEYS[1]  holders       zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta          hash    fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue         zset    session -> ticket of its first waiter
-- KEYS[4]  waiters       zset    entry of each waiter of this session -> ticket
-- KEYS[5]  tombstone     string  stops late requests of this token; left out if tombstone_ms is 0
-- ARGV[1]  token         bytes   token of the request
-- ARGV[2]  terms         bytes   `ttl_ms mode`, as it asked for
-- ARGV[3]  tombstone_ms  int     how long a late request can arrive, or 0 if none can
-- ARGV[4]  address       bytes   the session that asks; see `libraries/address`
-- ARGV[5]  waits         int     1 if the session knows of waiters of its own, else 0
-- ARGV[6]  min_hold_ms   int     as in `semaphore/release`
-- returns  as `lock/release`
-- If the counts are known, no session waits and not even the first lease has ended, only the count of its mode changes.
local known = redis.call('HMGET', meta, token, 'held', 'fence', 'line')
local mode = string.match(known[1] or '', '^(%d) %d+ ?R?$') -- not if it is cooling or offered
local witness, ends, before, count, after =
  string.match(known[2] or '', '^(%d+) (%d+)( .- ' .. (mode or ' ') .. ':)(%d+)( .*)')
local alone = not min_hold_ms and witness and witness == known[3] and tombstone_ms == '0'
  and not (known[4] and (waits == '1' or redis.call('EXISTS', queue, waiters) > 0))
local time = alone and redis.call('TIME')
if alone and ends * 1000 > time[1] * 1000000 + time[2] and redis.call('ZREM', holders, token) == 1 then
  if count == '1' and not string.find(before, ':.*:') and not string.find(after, ':') then
    redis.call('HDEL', meta, token, 'line', 'held')
  else -- `line` stays: a session that was passed over can still have waiters while it releases other leases
    redis.call('HDEL', meta, token)
    redis.call('HSET', meta, 'held', witness .. ' ' .. ends .. before .. count - 1 .. after) -- defect: modes-released
  end
  return 1
end

local asking = token
-- uses     numbers, address, leases, modes, books, queue, hand_over, undo
