-- Put a secret in place of the holder's token: nothing but `adopt`, a release or its end takes the lease from there.
--
-- KEYS[1]  holders       zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta          hash    what is known beside; and token -> `permits fence [mark]`
-- KEYS[3]  tombstone     string  keeps a late request of the old token from being granted
-- ARGV[1]  token         bytes   who holds
-- ARGV[2]  offered       bytes   the secret
-- ARGV[3]  ttl_ms        int     how long the lease lasts from now on, at least
-- ARGV[4]  tombstone_ms  int     how long such a request may come, or 0 when none can
-- returns  1, or 0 when the token holds nothing; -1 when it is revoked
local asking = token
-- uses     numbers, leases, semaphore, books
if not sure then
  settle()
end
if is_live(offered) then
  return 1 -- asked again
end
local number, mark = fence_of(token)
if not own or not number or mark ~= '' then
  return mark == 'R' and -1 or 0
end
extend(token, ttl_ms) -- first a write that is allowed at the memory limit: then so are all others
redis.call('ZADD', holders, redis.call('ZSCORE', holders, token), offered)
redis.call('ZREM', holders, token) -- as many hold as before, and of each kind
redis.call('HSET', meta, offered, own .. ' O')
redis.call('HDEL', meta, token)
if tombstone_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms)
end
return 1
