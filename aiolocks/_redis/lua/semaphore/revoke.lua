-- Revoke leases: nothing extends them any more (W16). Or end them at once. Then hand over.
--
-- KEYS[1]  holders       zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta          hash   the counts; and token -> `permits fence [mark]`
-- KEYS[3]  queue         zset   session -> ticket of its first waiter
-- KEYS[4]  waiters       zset   entry of each waiter of this session -> ticket
-- ARGV[1]  meant         bytes  `first last`: the range of fencing tokens; 0 is a holder of which nothing is known. A
--                               third word is the place to continue from
-- ARGV[2]  tombstone_ms  int    0: mark them; -1: only look; else end them at once, and bury their tokens for so long
-- ARGV[3]  reason        bytes  why, for the holders; can be empty
-- ARGV[4]  address       bytes  the session that asks; see `libraries/address`
-- returns  {{ms until the last of them ends if it is not released, 0 if all have ended, or -1 if one cannot be marked;
--          the place to continue from if one script does not look at all holders, else an empty text; and for each of
--          them its fencing token, the ms that it had left, and its permits}, grants for this session…}
local asking = ''
local first, last, place = string.match(meant, '^(%d+) (%d+) ?(%S*)$')
-- uses     numbers, address, leases, semaphore, books, queue, hand_over, revoke
settle()
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- W9: a key of another type fails before anything is changed
local reply = { revoke_some() }
hand_over(reply)
if unwritten then
  note()
end
return reply
