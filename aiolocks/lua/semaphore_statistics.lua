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
if backlog then
  local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms)
  members = members - #ended
  for from = 1, #ended, MOST do
    for _, weight in ipairs(weights_of(ended, from)) do
      used = used - (weight or largest())
    end
  end
end
local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
local waiting = 0
for _, session in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  waiting = waiting + redis.call('ZCARD', lines .. session)
end
return { used, members, waiting, newest, limit_in_force }
