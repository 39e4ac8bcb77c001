-- Take over an offered lease, with a new fencing token. Never creates a lease and never shortens one.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    the counts; and token -> `permits fence [mark]`
-- KEYS[3]  tombstone  string  exists if this token was withdrawn
-- ARGV[1]  token      bytes   token of the request
-- ARGV[2]  offered    bytes   the secret that replaced the old holder's token
-- ARGV[3]  ttl_ms     int     minimum time that the lease lasts from now on
-- returns  int  fencing token (> 0); or 0 if nothing is offered under that secret
local asking = token
-- uses     numbers, leases, semaphore, books
if redis.call('EXISTS', tombstone) == 1 then
  return 0 -- W10: its undo overtook this request
end
if not sure then
  settle()
end
local number, mark = fence_of(token)
if number then
  if mark ~= '' then
    return 0
  end
  extend(token, ttl_ms) -- P6: asked again, because the first reply was lost: the same lease
  return number
end
local _, offer = fence_of(offered)
if offer ~= 'O' then
  return 0
end
local share = string.match(redis.call('HMGET', meta, offered)[1], '^%d+') -- its permits or its mode
local lasts = math.max(redis.call('ZSCORE', holders, offered) - now_ms, ttl_ms)
keep(lasts) -- W9: this write is allowed at the memory limit, and then all are
grant(token, lasts, share)
drop(offered)
-- W27: so `touch` and `drop` leave the other names of the lease to the adopter.
redis.pcall('SET', holders .. ':t:' .. offered, 'A', 'PX', lasts .. '') -- defect: W27-adopter
note()
return newest
