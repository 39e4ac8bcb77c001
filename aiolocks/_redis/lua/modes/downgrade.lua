-- Keep the lease in a weaker mode, and hand over what fits. The lease is held at every instant.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of each waiter of this session -> ticket
-- ARGV[1]  token     bytes  token of the holder
-- ARGV[2]  mode      int    the new mode
-- ARGV[3]  address   bytes  the session that asks; see `libraries/address`
-- returns  {1, or 0 if the token holds nothing, or if it is revoked, as `renew`; grants for this session…}
local asking = token
-- uses     numbers, address, leases, modes, books, queue, hand_over, revoke
settle()
local number, mark = fence_of(token)
if not number or mark ~= '' then
  -- slow path
  return { mark == 'R' and reason_of(holders, token, -1) or 0 }
end
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- W9: a key of another type fails before anything is changed
-- equivalent: constant, keys never lose time
keep(0) -- W9: this write is allowed at the memory limit, and then all are
if number == 0 then
  -- slow path
  describe_again(token, mode)
else
  count(string.sub(own, 1, 1), -1) -- defect: modes-downgrade
  count(mode, 1)
  redis.call('HSET', meta, token, mode .. ' ' .. digits(number))
  note()
end
local reply = { 1 }
hand_over(reply)
return reply
