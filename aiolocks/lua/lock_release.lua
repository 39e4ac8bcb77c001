-- Undo whatever the token has: its lease, its place in the queue, or a request still on its way. Then hand over.
--
-- KEYS[1]  holder     string  `token fence` of the current holder
-- KEYS[2]  fence      string  last fencing token
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
-- uses     clock, lock, queue
local owner = held_by()
local ended = 0
if owner == token then
  redis.call('DEL', holder)
  owner = nil
  ended = 1
else
  leave(entry)
end
if bury_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', bury_ms)
end
local mine = {}
if not owner and awaited() then
  hand_over(mine)
end
return { ended, mine }
