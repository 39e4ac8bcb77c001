-- Set how long the lease of the holder lasts, and of no other; the one script that may shorten it. Never creates a lease.
--
-- KEYS[1]  holder  string  the token of the current holder
-- ARGV[1]  token   bytes   who asks
-- ARGV[2]  ttl_ms  int     how long the lease lasts from now on; empty: as long as it does
-- returns  how long it lasts now, in ms, -1 if it has no end; nothing when another holds it, or none
if redis.call('GET', holder) ~= token then
  return nil
end
if ttl_ms ~= '' then
  redis.call('PEXPIRE', holder, ttl_ms)
end
return redis.call('PTTL', holder)
