-- Extend the leases of many holders, of any names, and of no other. Never creates a lease and never shortens one.
--
-- KEYS[1…]  keys   zset, hash  of each lease the `holders` and the `meta`, as in `renew`; of a lock in modes too
-- ARGV[1…]  terms  bytes       of each its token, and how long it lasts from now on (ms), at least
-- returns  for each 1; or 0 when `renew` must be asked, which says why: the token holds nothing, it is marked, or
--          Redis refused it, or there is more to write than when the lease ends
local holders, meta
-- uses     numbers, leases
local answers = {}
for at = 1, #keys / 2 do
  holders, meta = keys[2 * at - 1], keys[2 * at]
  local done, renewed = pcall(extend_as_usual, terms[2 * at - 1], terms[2 * at]) -- defect: W21-by-itself
  answers[at] = done and renewed and 1 or 0
end
return answers
