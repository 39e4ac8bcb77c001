-- Extend the lease of the holder, and of no other. Never creates a lease and never shortens one.
--
-- KEYS[1]  holder  string  the token of the current holder
-- ARGV[1]  token   bytes   who asks
-- ARGV[2]  ttl_ms  int     how long the lease lasts from now on, at least
-- returns  1, or 0 when another holds it, or none
if redis.call('GET', holder) ~= token then
  return 0 -- no other key is looked at: on a Cluster, what stands beside this one may be on another node
end
if redis.call('PTTL', holder) - ttl_ms < 0 then
  redis.call('PEXPIRE', holder, ttl_ms)
end
return 1
