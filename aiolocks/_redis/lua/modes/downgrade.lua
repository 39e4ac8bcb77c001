-- Go on holding, in a weaker mode, and hand over what may be held beside it. There is no instant between.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of this session's waiters -> ticket
-- ARGV[1]  token     bytes  who holds
-- ARGV[2]  mode      int    what from now on
-- ARGV[3]  session   bytes  who asks
-- ARGV[4]  channels  bytes  start of every session's channel
-- ARGV[5]  life_ms   int    how long the session is taken for alive without a re-check
-- returns  {1, or 0 when the token holds nothing, or -1 when it is revoked, grants for this session…}
local asking = ''
-- uses     numbers, leases, modes, queue, hand_over
settle()
local number, mark = fence_of(token)
if not number or mark ~= '' then
  return { mark == 'R' and -1 or 0 }
end
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- a key of another type is an error before anything is changed
-- equivalent: constant, keys never lose time
keep(0) -- first a write that is allowed at the memory limit: then so are all others
local before = mode_of(token) -- defect: modes-downgrade
held[before] = held[before] - 1
held[tonumber(mode)] = held[tonumber(mode)] + 1
write(token, mode .. ' ' .. digits(number))
note()
local reply = { 1 }
hand_over(reply)
return reply
