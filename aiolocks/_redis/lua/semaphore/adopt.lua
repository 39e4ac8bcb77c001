-- Take over a lease that was offered, with a fencing token of its own. Never creates a lease and never shortens one.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    what is known beside; and token -> `permits fence [mark]`
-- KEYS[3]  tombstone  string  there when this token was withdrawn
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  offered    bytes   the secret that was put in place of the old holder's token
-- ARGV[3]  ttl_ms     int     how long the lease lasts from now on, at least
-- returns  int  fencing token (> 0); or 0 when nothing is offered under that secret any more
local asking = token
-- uses     numbers, leases, semaphore, books
if redis.call('EXISTS', tombstone) == 1 then
  return 0 -- this request was overtaken by its own undo
end
if not sure then
  settle()
end
local number, mark = fence_of(token)
if number then
  if mark ~= '' then
    return 0
  end
  extend(token, ttl_ms) -- asked again, because the first answer was lost or is old: the same lease
  return number
end
local _, offer = fence_of(offered)
if offer ~= 'O' then
  return 0
end
local share = string.match(redis.call('HMGET', meta, offered)[1], '^%d+') -- of the permits, or a mode
local lasts = math.max(redis.call('ZSCORE', holders, offered) - now_ms, ttl_ms)
keep(lasts) -- first a write that is allowed at the memory limit: then so are all others
grant(token, lasts, share)
drop(offered)
note()
return newest
