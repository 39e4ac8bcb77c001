-- Set the TTL of the holder's lease, and of no other. The only script that can shorten a lease. Never creates one.
--
-- KEYS[1]  holder  string  the token of the current holder
-- ARGV[1]  token   bytes   token of the request
-- ARGV[2]  ttl_ms  int     how long the lease lasts from now on; empty: leave it as it is
-- returns  for how many ms it lasts now, -1 if it has no end; nil if the token does not hold it
if redis.call('GET', holder) ~= token then
  return nil
end
if ttl_ms ~= '' then
  redis.call('PEXPIRE', holder, ttl_ms)
end
return redis.call('PTTL', holder)
