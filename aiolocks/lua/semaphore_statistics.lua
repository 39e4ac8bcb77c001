-- Count permits, holders and waiters.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  limit, fence, weight, ttl; and token -> `permits fence`
-- KEYS[3]  queue    zset  session -> ticket of its first waiter
-- returns  {permits in use, holders, waiters, last fencing token, limit or 0 when none is in force}
-- uses     clock, digits, permits, semaphore
drop_expired()
local waiting = 0
for _, session in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  waiting = waiting + redis.call('ZCARD', string.sub(queue, 1, -string.len('queue') - 1) .. 'q:' .. session)
end
return { in_use(), redis.call('ZCARD', holders), waiting, newest, limit_in_force }
