-- Have nothing extend some leases any more, or end them at once. Then hand over what is free.
--
-- Fencing tokens say which leases are meant, so that a request which is sent again hits no later one.
--
-- KEYS[1]  holders       zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta          hash   fence, ttl, held, line; and token -> `mode fence [mark]`
-- KEYS[3]  queue         zset   session -> ticket of its first waiter
-- KEYS[4]  waiters       zset   entry of this session's waiters -> ticket
-- ARGV[1]  meant         bytes  `first last`: which fencing tokens are meant; 0 is that of a holder of which none is known.
--                               A third word says where to go on
-- ARGV[2]  tombstone_ms  int    0: mark them; -1: only look; else end them at once, and bury their tokens for so long
-- ARGV[3]  session       bytes  who asks
-- ARGV[4]  channels      bytes  start of every session's channel
-- ARGV[5]  life_ms       int    how long the session is taken for alive without a re-check
-- returns  {{ms until the last of those meant ends if it is not released; or 0 when none is there any more, or -1 when one
--          cannot be marked; where to go on, if there are more holders than one script looks at, else empty; and of each
--          that was meant its fencing token, the ms that it had left, and its mode}, grants for this session…}
local asking = ''
local first, last, place = string.match(meant, '^(%d+) (%d+) ?(%S*)$')
-- uses     numbers, leases, modes, queue, hand_over, revoke
settle()
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- a key of another type is an error before anything is changed
local reply = { revoke_some() }
hand_over(reply)
if unwritten then
  note()
end
return reply
