-- Replace the holder's token by a secret (W17). From then on only `adopt`, a release or its end can end the offer.
--
-- KEYS[1]  holder        string  `token fence [mark]` of the current holder
-- KEYS[2]  tombstone     string  stops late requests of the old token
-- ARGV[1]  token         bytes   token of the holder
-- ARGV[2]  offered       bytes   the secret
-- ARGV[3]  ttl_ms        int     minimum time that the lease lasts from now on
-- ARGV[4]  tombstone_ms  int     how long such a request can arrive, or 0 if none can
-- returns  1; 0 if the token holds nothing; if it is revoked, -1, or `R` and the reason
-- uses     numbers, mutex, revoke
local owner, number, mark = held_by()
if owner == offered then
  return 1 -- P6: asked again
elseif owner ~= token or mark ~= '' then
  -- slow path
  return owner == token and mark == 'R' and reason_of(holder, token, -1) or 0
end
local lasts = math.max(redis.call('PTTL', holder), ttl_ms) .. ''
redis.call('PEXPIRE', holder, lasts) -- W9: this write is allowed at the memory limit, and then all are
redis.call('SET', holder, offered .. ' ' .. digits(number) .. ' O', 'PX', lasts)
if tombstone_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms)
end
return 1
