-- Count permits, holders and waiters.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  limit, fence, weight, ttl, used, line; and token -> `permits fence`
-- KEYS[3]  queue    zset  session -> ticket of its first waiter
-- returns  {permits in use, holders, waiters, last fencing token, limit or 0 when none is in force}
-- uses     clock, digits
local asking = ''
-- uses     permits, semaphore
settle()
for _ = 1, 9 do
  if backlog then
    drop_ended()
    note()
  end
end
local waiting = 0
for _, session in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  waiting = waiting + redis.call('ZCARD', string.sub(queue, 1, -string.len('queue') - 1) .. 'q:' .. session)
end
return { used, members, waiting, newest, limit_in_force }
