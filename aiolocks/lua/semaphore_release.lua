-- Undo whatever the token has: its permits, its place in the queue, or a request still on its way. Then hand over.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    limit, fence, weight, ttl; and token -> `permits fence`
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  keeps a request of this token that comes late from being granted
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  entry      bytes   its entry in the queue
-- ARGV[3]  bury_ms    int     how long a late request may come, or 0 when none can
-- ARGV[4]  session    bytes   who asks
-- ARGV[5]  channels   bytes   start of every session's channel
-- ARGV[6]  life_ms    int     how long the session is taken for alive without a re-check
-- returns  {1 if this ended a live lease, else 0, grants for this session}
-- uses     clock, semaphore, queue
drop_expired()
local ended = redis.call('ZREM', holders, token) -- first a write that frees memory: then all others are allowed
if ended == 1 then
  redis.call('HDEL', meta, token)
else
  leave(entry)
end
if bury_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', bury_ms)
end
local mine = {}
if awaited() then
  hand_over(mine)
end
return { ended, mine }
