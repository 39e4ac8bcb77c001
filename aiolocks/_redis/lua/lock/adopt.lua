-- Take over an offered lease, with a new fencing token. Never creates a lease and never shortens one.
--
-- KEYS[1]  holder     string  `token fence [mark]` of the current holder
-- KEYS[2]  fence      string  last fencing token; outlives the last grant by a day
-- KEYS[3]  tombstone  string  exists if this token was withdrawn
-- ARGV[1]  token      bytes   token of the request
-- ARGV[2]  offered    bytes   the secret that replaced the old holder's token
-- ARGV[3]  ttl_ms     int     minimum time that the lease lasts from now on
-- returns  int  fencing token (> 0); or 0 if nothing is offered under that secret
-- uses     numbers, mutex
if redis.call('EXISTS', tombstone) == 1 then
  return 0 -- W10: its undo overtook this request
end
local owner, number, mark = held_by()
if owner == token then
  if mark ~= '' then
    return 0
  end
  extend(token, ttl_ms) -- P6: asked again, because the first reply was lost: the same lease
  return number
elseif owner ~= offered or mark ~= 'O' then -- defect: W17-offered
  return 0
end
last_fence() -- W9: a key of another type fails before anything is changed
local lasts = math.max(redis.call('PTTL', holder), ttl_ms) .. ''
redis.call('PEXPIRE', holder, lasts) -- W9: this write is allowed at the memory limit, and then all are
-- W27: so `touch` and `drop` leave the other names of the lease to the adopter.
redis.pcall('SET', holder .. ':t:' .. offered, 'A', 'PX', lasts) -- defect: W27-adopter
return (grant(token, lasts)) -- defect: W17-fence
