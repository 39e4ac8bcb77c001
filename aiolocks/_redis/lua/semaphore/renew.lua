-- Extend the lease of a holder, and of no other. Never creates a lease and never shortens one (P3, P5).
--
-- KEYS[1]  holders  zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash   limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- ARGV[1]  token    bytes  token of the request
-- ARGV[2]  ttl_ms   int    minimum time that the lease lasts from now on
-- returns  1; 0 if the token holds nothing; if its lease is revoked, -1, or `R` and the reason
local asking = token
-- uses     numbers, leases, semaphore, books, revoke
if not sure then
  -- slow path: some leases can have ended
  settle()
end
if not is_live(token) then
  -- slow path
  local forced = redis.call('GET', holders .. ':t:' .. token) == 'R' -- W16
  return forced and reason_of(holders, token, -1) or 0
end
local _, mark = parts_of(own)
if mark ~= '' then
  -- slow path
  return mark == 'R' and reason_of(holders, token, -1) or 0
end
extend(token, ttl_ms)
return 1
