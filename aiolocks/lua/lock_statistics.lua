-- Count holders and waiters. Changes nothing.
--
-- KEYS[1]  holder  string  `token fence` of the current holder
-- KEYS[2]  fence   string  last fencing token
-- KEYS[3]  queue   zset    session -> ticket of its first waiter
-- returns  {permits in use, holders, waiters, last fencing token, limit}
local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
local waiting = 0
for _, session in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  waiting = waiting + redis.call('ZCARD', lines .. session)
end
local holders = redis.call('EXISTS', holder)
return { holders, holders, waiting, tonumber(redis.call('GET', fence) or 0), 1 }
