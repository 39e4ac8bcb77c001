-- Put a limit in force for all, and hand over. A lower limit revokes nothing. No declaration changes a pinned limit.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of each waiter of this session -> ticket
-- ARGV[1]  limit     int    the new limit
-- ARGV[2]  pin       int    1: pin it; 0: unpin it; -1: leave the pin as it is
-- ARGV[3]  address   bytes  the session that asks; see `libraries/address`
-- returns  {limit before, or 0 if there was none; grants for this session…}
local asking = ''
-- uses     numbers, address, leases, semaphore, books, queue, hand_over
settle()
local before = limit_in_force
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- W9: a key of another type fails before anything is changed
declare_limit(limit, pin == '1' or pin == '-1' and is_pinned())
if heaviest == 0 and members > 0 then
  -- slow path: W21: holders of which nothing is known count as the new limit
  count_again()
  note()
end
local reply = { before }
hand_over(reply) -- defect: W7-resize
return reply
