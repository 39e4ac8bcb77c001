-- Extend an offered lease under its secret, and no other lease (W27). Never creates a lease and never shortens one.
--
-- KEYS[1]  holder   string  `token fence [mark]` of the current holder
-- ARGV[1]  offered  bytes   the secret that replaced the holder's token
-- ARGV[2]  ttl_ms   int     minimum time that the lease lasts from now on
-- returns  int  fencing token of the lease that was handed off (> 0); 0 if nothing is offered under that secret; -1 if
--               it was adopted
-- An adopter of an older version leaves no mark. If it is adopting one name after the other just then, the others are
-- dropped, and it is refused.
-- uses     mutex
local owner, number, mark = held_by()
if owner ~= offered or mark ~= 'O' then -- defect: W27-offered
  return redis.call('GET', holder .. ':t:' .. offered) == 'A' and -1 or 0
end
-- W9: the only write is allowed at the memory limit.
extend(offered, ttl_ms) -- defect: W27-extend
return number -- defect: W27-fence
