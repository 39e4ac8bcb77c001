-- Take over a lease that was offered, with a fencing token of its own. Never creates a lease and never shortens one.
--
-- KEYS[1]  holder     string  `token fence [mark]` of the current holder
-- KEYS[2]  fence      string  last fencing token; outlives the last grant by a day
-- KEYS[3]  tombstone  string  there when this token was withdrawn
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  offered    bytes   the secret that was put in place of the old holder's token
-- ARGV[3]  ttl_ms     int     how long the lease lasts from now on, at least
-- returns  int  fencing token (> 0); or 0 when nothing is offered under that secret any more
-- uses     numbers, mutex
if redis.call('EXISTS', tombstone) == 1 then
  return 0 -- this request was overtaken by its own undo
end
local owner, number, mark = held_by()
if owner == token then
  if mark ~= '' then
    return 0
  end
  extend(token, ttl_ms) -- asked again, because the first answer was lost or is old: the same lease
  return number
elseif owner ~= offered or mark ~= 'O' then
  return 0
end
last_fence() -- a key of another type is an error before anything is changed
local lasts = math.max(redis.call('PTTL', holder), ttl_ms)
redis.call('PEXPIRE', holder, lasts) -- first a write that is allowed at the memory limit: then so are all others
return (grant(token, lasts))
