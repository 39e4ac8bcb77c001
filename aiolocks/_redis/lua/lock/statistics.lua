-- Count holders and waiters. Changes nothing.
--
-- KEYS[1]  holder  string  `token fence` of the current holder
-- KEYS[2]  fence   string  last fencing token
-- KEYS[3]  queue   zset    session -> ticket of its first waiter
-- ARGV[1]  first   int     place of the first session whose waiters are counted, from 0
-- returns  {permits in use, holders, waiters of those sessions, last fencing token, limit, place to go on from, or 0}
-- uses     queue
local holders = redis.call('EXISTS', holder)
local waiting, next_place = count_waiting()
return { holders, holders, waiting, tonumber(redis.call('GET', fence) or 0), 1, next_place }
