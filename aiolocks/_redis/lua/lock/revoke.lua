-- Revoke the lease: nothing extends it any more (W16). Or end it at once. Then hand over.
-- Fencing tokens name the lease, so a request that is sent again cannot hit a later lease.
--
-- KEYS[1]  holder        string  `token fence [mark]` of the current holder
-- KEYS[2]  fence         string  last fencing token
-- KEYS[3]  queue         zset    session -> ticket of its first waiter
-- KEYS[4]  waiters       zset    entry of each waiter of this session -> ticket
-- ARGV[1]  meant         bytes   `first last`: the range of fencing tokens; 0 is a holder without one
-- ARGV[2]  tombstone_ms  int     0: mark the lease; -1: only look; else end it at once, and bury its token for so long
-- ARGV[3]  reason        bytes   why, for the holder; can be empty
-- ARGV[4]  address       bytes   the session that asks; see `libraries/address`
-- returns  {{ms until the lease ends if it is not released, 0 if it has ended, or -1 if it cannot be marked; an empty
--          text; and if the lease was there, its fencing token, the ms that it had left or -1 if it has no end, and 1},
--          grants for this session…}
local first, last = string.match(meant, '^(%d+) (%d+)$')
-- uses     numbers, address, mutex, queue, hand_over, revoke
local value = redis.call('GET', holder)
local owner, number, mark = parts_of(value or '')
local left, told = 0, {}
last_fence()
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- W9: a key of another type fails before anything is changed
if value and is_meant(number) then
  left = redis.call('PTTL', holder)
  -- No body relies on it.
  local force, unused = tombstone_ms - 0 > 0, mark == 'C' or mark == 'O' -- defect: W27-revoked
  told = { number, unused and 0 or left, 1 }
  if force or (unused and tombstone_ms == '0') then
    redis.call('DEL', holder) -- W9: this write frees memory, and then all are allowed
    if force then
      redis.pcall('SET', holder .. ':t:' .. owner, 'R', 'PX', math.max(left, tombstone_ms) .. '')
      keep_reason(holder, owner, left)
    end
    left, value = 0, nil
  elseif number == 0 then
    left = -1 -- the text of another library, which has no place for a mark
  else
    if tombstone_ms == '0' and mark == '' then
      keep_as_it_is(holder, left)
      redis.call('SET', holder, value .. ' R', 'KEEPTTL')
      keep_reason(holder, owner, left)
    end
    left = math.max(left, 1)
  end
end
local reply = { { left, '', spread(told, 1, #told) } }
if not value then
  hand_over(reply)
end
return reply
