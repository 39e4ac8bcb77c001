-- Extend the lease of the holder, and of no other. Never creates a lease and never shortens one (P3, P5).
--
-- KEYS[1]  holder  string  `token fence [mark]` of the current holder
-- ARGV[1]  token   bytes   token of the request
-- ARGV[2]  ttl_ms  int     minimum time that the lease lasts from now on
-- returns  1; 0 if the token does not hold it; if its lease is revoked, -1, or `R` and the reason
-- uses     mutex, revoke
local value = redis.call('GET', holder)
-- defect: W16-renew
if not value or (string.match(value, '^(%S+) %d+$') or value) ~= token then
  -- slow path
  local owner, _, mark = parts_of(value or '')
  if owner ~= token then -- W16: revoked by force, if its tombstone says so
    mark = redis.call('GET', holder .. ':t:' .. token)
  end
  return mark == 'R' and reason_of(holder, token, -1) or 0 -- defect: P5-renew
end
if redis.call('PTTL', holder) - ttl_ms < 0 then -- defect: P3-renew
  redis.call('PEXPIRE', holder, ttl_ms) -- defect: W9-renew
end
return 1
