-- Extend the lease of the holder, and of no other. Never creates a lease and never shortens one.
--
-- KEYS[1]  holder  string  `token fence [mark]` of the current holder
-- ARGV[1]  token   bytes   who asks
-- ARGV[2]  ttl_ms  int     how long the lease lasts from now on, at least
-- returns  1, or 0 when another holds it, or none; -1 when it is revoked
-- uses     mutex
local value = redis.call('GET', holder)
if not value or (string.match(value, '^(%S+) %d+$') or value) ~= token then
  -- slow path
  local owner, _, mark = parts_of(value or '')
  if owner ~= token then -- it was revoked by force, if its tombstone says so
    mark = redis.call('GET', holder .. ':t:' .. token)
  end
  return mark == 'R' and -1 or 0 -- defect: P5-renew
end
if redis.call('PTTL', holder) - ttl_ms < 0 then -- defect: P3-renew
  redis.call('PEXPIRE', holder, ttl_ms) -- defect: W9-renew
end
return 1
