-- Count holders and waiters, and say what could be had.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  fence, ttl, held; and token -> `mode fence`
-- KEYS[3]  queue    zset  session -> ticket of its first waiter
-- returns  {leases held, the same, waiters, last fencing token, 0 as there is no limit, for each mode 1 if no holder is
--          in its way}
-- uses     clock, digits, shared
if backlog then
  add(redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms), -1)
end
local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
local waiting = 0
for _, session in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  waiting = waiting + redis.call('ZCARD', lines .. session)
end
local free = {}
for mode = 1, EXCLUSIVE do
  free[mode] = admits(mode, '') == 'yes' and 1 or 0
end
local leases = redis.call('ZCOUNT', holders, '(' .. digits(now_ms), '+inf')
return { leases, leases, waiting, newest, 0, free }
