-- Replace the token that was granted the lock by a token that the holder chose.
--
-- KEYS[1]  holder     string  the token of the current holder
-- KEYS[2]  tombstone  string  stops late requests of the old token
-- ARGV[1]  token      bytes   token of the holder
-- ARGV[2]  chosen     bytes   the new token
-- ARGV[3]  buried_ms  int     how long such a request can arrive, or 0 if none can
-- returns  1, or 0 if the token holds nothing
local current = redis.call('GET', holder)
if current == chosen then
  return 1 -- P6: asked again
elseif current ~= token then
  return 0
end
local left = math.max(redis.call('PTTL', holder), 1) .. ''
redis.call('PEXPIRE', holder, left) -- W9: this write is allowed at the memory limit, and then all are
redis.call('SET', holder, chosen, 'PX', left)
if buried_ms ~= '0' then -- equivalent: constant, Redis refuses to keep a key for 0 ms
  redis.pcall('SET', tombstone, '', 'PX', buried_ms)
end
return 1
