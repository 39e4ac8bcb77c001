-- Extend the lease of the holder, and of no other. Never creates a lease and never shortens one.
--
-- KEYS[1]  holder  string  `token fence` of the current holder
-- ARGV[1]  token   bytes   who asks
-- ARGV[2]  ttl_ms  int     how long the lease lasts from now on, at least
-- returns  1, or 0 when another holds it, or none
local value = redis.call('GET', holder)
if not value or (string.match(value, '^(%S+) %d+$') or value) ~= token then
  return 0
end
if redis.call('PTTL', holder) < tonumber(ttl_ms) then
  redis.call('PEXPIRE', holder, ttl_ms)
end
return 1
