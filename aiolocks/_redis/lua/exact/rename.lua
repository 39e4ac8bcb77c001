-- Put a token of the holder's own choice in place of that by which it was granted the lock.
--
-- KEYS[1]  holder     string  the token of the current holder
-- KEYS[2]  tombstone  string  keeps a late request of the old token from being granted
-- ARGV[1]  token      bytes   who holds
-- ARGV[2]  chosen     bytes   its own
-- ARGV[3]  buried_ms  int     how long such a request may come, or 0 when none can
-- returns  1, or 0 when the token holds nothing
local current = redis.call('GET', holder)
if current == chosen then
  return 1 -- asked again
elseif current ~= token then
  return 0
end
local left = math.max(redis.call('PTTL', holder), 1)
redis.call('PEXPIRE', holder, left) -- first a write that is allowed at the memory limit: then so are all others
redis.call('SET', holder, chosen, 'PX', left)
if buried_ms ~= '0' then
  redis.pcall('SET', tombstone, '', 'PX', buried_ms)
end
return 1
