-- Put a secret in place of the holder's token: nothing but `adopt`, a release or its end takes the lease from there.
--
-- KEYS[1]  holder        string  `token fence [mark]` of the current holder
-- KEYS[2]  tombstone     string  keeps a late request of the old token from being granted
-- ARGV[1]  token         bytes   who holds
-- ARGV[2]  offered       bytes   the secret
-- ARGV[3]  ttl_ms        int     how long the lease lasts from now on, at least
-- ARGV[4]  tombstone_ms  int     how long such a request may come, or 0 when none can
-- returns  1, or 0 when the token holds nothing; -1 when it is revoked
-- uses     numbers, mutex
local owner, number, mark = held_by()
if owner == offered then
  return 1 -- asked again
elseif owner ~= token or mark ~= '' then
  return owner == token and mark == 'R' and -1 or 0
end
local lasts = math.max(redis.call('PTTL', holder), ttl_ms)
redis.call('PEXPIRE', holder, lasts) -- first a write that is allowed at the memory limit: then so are all others
redis.call('SET', holder, offered .. ' ' .. digits(number) .. ' O', 'PX', lasts)
if tombstone_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms)
end
return 1
