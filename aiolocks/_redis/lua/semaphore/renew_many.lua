-- Extend the leases of many holders, of any names, and of no other (W21). Never creates or shortens a lease.
--
-- KEYS[1…]  keys   zset, hash  for each lease the `holders` and the `meta`, as in `renew`, also of a name in modes
-- ARGV[1…]  terms  bytes       for each its token, and the minimum time that it lasts from now on (ms)
-- returns  as `lock/renew_many`; 0 also if there is more to write than the end of the lease
local holders, meta
-- uses     numbers, leases
local answers = {}
for at = 1, #keys / 2 do
  holders, meta = keys[2 * at - 1], keys[2 * at]
  local done, renewed = pcall(extend_as_usual, terms[2 * at - 1], terms[2 * at]) -- defect: W21-by-itself
  answers[at] = done and renewed and 1 or 0
end
return answers
