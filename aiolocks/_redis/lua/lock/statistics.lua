-- Count holders and waiters. Changes nothing.
--
-- KEYS[1]  holder  string  `token fence [mark]` of the current holder
-- KEYS[2]  fence   string  last fencing token
-- KEYS[3]  queue   zset    session -> ticket of its first waiter
-- ARGV[1]  first   int     place of the first session whose waiters are counted, from 0
-- returns  {permits in use, leases, waiters of those sessions, last fencing token, limit, place to continue from or 0,
--          cooling leases (W18), server time (ms) at which the last of these ends or 0}
-- uses     numbers, mutex, queue
local _, _, mark = held_by()
local leases, kept, kept_until_ms = mark and 1 or 0, mark == 'C' and 1 or 0, 0
if kept == 1 then
  kept_until_ms = math.floor(micros() / 1000) + math.max(redis.call('PTTL', holder), 0)
end
local waiting, next_place = count_waiting()
return { leases, leases, waiting, tonumber(redis.call('GET', fence) or 0), 1, next_place, kept, kept_until_ms }
