-- Replace the holder's token by a secret (W17). From then on only `adopt`, a release or its end can end the offer.
--
-- KEYS[1]  holders       zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta          hash    the counts; and token -> `permits fence [mark]`
-- KEYS[3]  tombstone     string  stops late requests of the old token
-- ARGV[1]  token         bytes   token of the holder
-- ARGV[2]  offered       bytes   the secret
-- ARGV[3]  ttl_ms        int     minimum time that the lease lasts from now on
-- ARGV[4]  tombstone_ms  int     how long such a request can arrive, or 0 if none can
-- returns  1; 0 if the token holds nothing; if it is revoked, -1, or `R` and the reason
local asking = token
-- uses     numbers, leases, semaphore, books, revoke
if not sure then
  settle()
end
if is_live(offered) then
  return 1 -- P6: asked again
end
local number, mark = fence_of(token)
if not own or not number or mark ~= '' then
  -- slow path
  return mark == 'R' and reason_of(holders, token, -1) or 0
end
extend(token, ttl_ms) -- W9: this write is allowed at the memory limit, and then all are
redis.call('ZADD', holders, redis.call('ZSCORE', holders, token), offered)
redis.call('ZREM', holders, token) -- W21: the counts stay the same
redis.call('HSET', meta, offered, own .. ' O')
redis.call('HDEL', meta, token)
if tombstone_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms)
end
return 1
