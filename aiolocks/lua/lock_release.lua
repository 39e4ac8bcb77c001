-- Undo whatever the token has: its lease, its place in the queue, or a request still on its way. Then hand over.
--
-- KEYS[1]  holder     string  `token fence` of the current holder
-- KEYS[2]  fence      string  last fencing token
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  keeps a request of this token that comes late from being granted
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  ttl_ms     int     how long its lease lasts
-- ARGV[3]  permits    int     how many it wanted
-- ARGV[4]  bury_ms    int     how long a late request may come, or 0 when none can
-- ARGV[5]  session    bytes   who asks
-- ARGV[6]  channels   bytes   start of every session's channel
-- ARGV[7]  life_ms    int     how long the session is taken for alive without a re-check
-- returns  1 when this ended a live lease and nobody waits; else {1 or 0, grants for this session}
local value = redis.call('GET', holder)
local ended = 0
if value and (value == token or string.sub(value, 1, string.len(token) + 1) == token .. ' ') then
  redis.call('DEL', holder)
  value = nil
  ended = 1
  if bury_ms == '0' and redis.call('EXISTS', queue, waiters) == 0 then
    return 1
  end
end

-- uses     clock, fence, lock, queue, hand_over
if ended == 0 then
  leave(token .. ' ' .. ttl_ms .. ' ' .. permits)
end
if bury_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', bury_ms)
end
local mine = {}
if not value then
  hand_over(mine)
end
return { ended, mine }
