-- Have nothing extend the lease that is held any more, or end it at once, as one that was released before. Then hand over
-- what is free.
--
-- Fencing tokens say which lease is meant, so that a request which is sent again hits no later one.
--
-- KEYS[1]  holder        string  `token fence [mark]` of the current holder
-- KEYS[2]  fence         string  last fencing token
-- KEYS[3]  queue         zset    session -> ticket of its first waiter
-- KEYS[4]  waiters       zset    entry of this session's waiters -> ticket
-- ARGV[1]  meant         bytes   `first last`: which fencing tokens are meant; 0 is that of a holder of which none is known
-- ARGV[2]  tombstone_ms  int     0: mark it; -1: only look; else end it at once, and bury its token for so long
-- ARGV[3]  session       bytes   who asks
-- ARGV[4]  channels      bytes   start of every session's channel
-- ARGV[5]  life_ms       int     how long the session is taken for alive without a re-check
-- returns  {{ms until what is meant ends if it is not released; or 0 when it is not there any more, or -1 when it cannot be
--          marked; always empty; and of what is meant, if it was there, its fencing token, the ms that it had left, or -1
--          if it never ends, and always 1}, grants for this session…}
local first, last = string.match(meant, '^(%d+) (%d+)$')
-- uses     numbers, mutex, queue, hand_over, revoke
local value = redis.call('GET', holder)
local owner, number, mark = parts_of(value or '')
local left, told = 0, {}
last_fence()
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- a key of another type is an error before anything is changed
if value and is_meant(number) then
  left = redis.call('PTTL', holder)
  local force, unused = tombstone_ms - 0 > 0, mark == 'C' or mark == 'O' -- released before, or handed off and not adopted
  told = { number, unused and 0 or left, 1 }
  if force or (unused and tombstone_ms == '0') then
    redis.call('DEL', holder) -- first a write that frees memory: then all others are allowed
    if force then
      redis.pcall('SET', holder .. ':t:' .. owner, 'R', 'PX', math.max(left, tombstone_ms))
    end
    left, value = 0, nil
  elseif number == 0 then
    left = -1 -- a text of another library's own, which has no place for a mark
  else
    if tombstone_ms == '0' and mark == '' then
      keep_as_it_is(holder, left)
      redis.call('SET', holder, value .. ' R', 'KEEPTTL')
    end
    left = math.max(left, 1)
  end
end
local reply = { { left, '', spread(told, 1, #told) } }
if not value then
  hand_over(reply)
end
return reply
