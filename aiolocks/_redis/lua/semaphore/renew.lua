-- Extend the lease of a holder, and of no other. Never creates a lease and never shortens one.
--
-- KEYS[1]  holders  zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash   limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- ARGV[1]  token    bytes  who asks
-- ARGV[2]  ttl_ms   int    how long the lease lasts from now on, at least
-- returns  1, or 0 when the token holds nothing; -1 when it is revoked
local asking = token
-- uses     numbers, leases, semaphore, books
if not sure then
  -- slow path: some leases may have run out
  settle()
end
if not is_live(token) then
  return redis.call('GET', holders .. ':t:' .. token) == 'R' and -1 or 0 -- revoked by force, if its tombstone says so
end
local _, mark = parts_of(own)
if mark ~= '' then
  return mark == 'R' and -1 or 0
end
extend(token, ttl_ms)
return 1
