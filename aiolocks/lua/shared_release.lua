-- Undo whatever the token has: its lease, its place in the queue, or a request still on its way. Then hand over.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    fence, ttl, held; and token -> `mode fence`
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  keeps a request of this token that comes late from being granted
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  ttl_ms     int     how long its lease lasts
-- ARGV[3]  mode       int     what it wanted
-- ARGV[4]  bury_ms    int     how long a late request may come, or 0 when none can
-- ARGV[5]  session    bytes   who asks
-- ARGV[6]  channels   bytes   start of every session's channel
-- ARGV[7]  life_ms    int     how long the session is taken for alive without a re-check
-- returns  1 when this ended a live lease and nobody waits; else {1 or 0, grants for this session}
-- uses     clock, shared
local ended = drop(token) -- first a write that frees memory: then all others are allowed
if ended == 1 and bury_ms == '0' and redis.call('EXISTS', queue, waiters) == 0 then
  return 1
end

-- uses     queue, hand_over
if ended == 0 then
  leave(token .. ' ' .. ttl_ms .. ' ' .. mode)
end
if bury_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', bury_ms)
end
local mine = {}
hand_over(mine)
return { ended, mine }
