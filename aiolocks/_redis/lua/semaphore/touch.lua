-- Extend an offered lease under its secret, and no other lease (W27). Never creates a lease and never shortens one.
--
-- KEYS[1]  holders  zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash   the counts; and token -> `permits fence [mark]`
-- ARGV[1]  offered  bytes  the secret that replaced the holder's token
-- ARGV[2]  ttl_ms   int    minimum time that the lease lasts from now on
-- returns  as `lock/touch`
local asking = offered
-- uses     numbers, leases, semaphore, books
if not sure then
  -- slow path: some leases can have ended
  settle()
end
local number, mark = fence_of(offered)
if mark ~= 'O' then -- defect: W27-offered-permits
  return redis.call('GET', holders .. ':t:' .. offered) == 'A' and -1 or 0
end
-- W9: the first write is allowed at the memory limit, and then all are.
extend(offered, ttl_ms) -- defect: W27-extend-permits
return number -- defect: W27-fence
