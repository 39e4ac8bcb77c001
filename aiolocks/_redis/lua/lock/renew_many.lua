-- Extend the leases of many locks, each for its holder and for no other (W21). Never creates or shortens a lease.
--
-- KEYS[1…]  holders  string  `token fence [mark]` of the current holder of each
-- ARGV[1…]  terms    bytes   for each its token, and the minimum time that its lease lasts from now on (ms)
-- returns  for each 1; or 0, and `renew` says why: the token does not hold it, it has a mark, or Redis refused it
-- uses     mutex
local answers = {}
for at, holder in ipairs(holders) do
  local token, ttl_ms = terms[2 * at - 1], terms[2 * at]
  local value = redis.pcall('GET', holder)
  -- defect: W21-renewed
  local renewed = type(value) == 'string' and (fenced and string.match(value, '^(%S+) %d+$') or value) == token
  if renewed and redis.call('PTTL', holder) - ttl_ms < 0 then -- defect: P3-renew-many
    renewed = redis.pcall('PEXPIRE', holder, ttl_ms) == 1
  end
  answers[at] = renewed and 1 or 0
end
return answers
