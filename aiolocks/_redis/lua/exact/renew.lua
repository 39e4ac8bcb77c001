-- Extend the lease of the holder, and of no other. Never creates a lease and never shortens one (P3, P5).
--
-- KEYS[1]  holder  string  the token of the current holder
-- ARGV[1]  token   bytes   token of the request
-- ARGV[2]  ttl_ms  int     minimum time that the lease lasts from now on
-- returns  1, or 0 if the token does not hold it
if redis.call('GET', holder) ~= token then
  return 0 -- no other key is read: on a Cluster it can be on another node
end
if redis.call('PTTL', holder) - ttl_ms < 0 then
  redis.call('PEXPIRE', holder, ttl_ms)
end
return 1
