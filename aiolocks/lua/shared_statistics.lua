-- Count holders and waiters, and say what could be had.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  fence, ttl, held; and token -> `mode fence`
-- KEYS[3]  queue    zset  session -> ticket of its first waiter
-- returns  {leases held, the same, waiters, last fencing token, 0 as there is no limit, for each mode 1 if no holder is
--          in its way}
-- uses     clock, digits, shared
for _ = 1, 9 do
  if backlog then
    drop_ended()
  end
end
local waiting = 0
for _, session in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  waiting = waiting + redis.call('ZCARD', string.sub(queue, 1, -string.len('queue') - 1) .. 'q:' .. session)
end
local free = {}
for mode = 1, EXCLUSIVE do
  free[mode] = admits(mode, '') == 'yes' and 1 or 0
end
local leases = redis.call('ZCARD', holders)
return { leases, leases, waiting, newest, 0, free }
