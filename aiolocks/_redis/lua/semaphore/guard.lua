-- Run commands of the holder, if its lease is the current one of each name, and never twice (W10).
--
-- KEYS[1]  record   string  number of the last run for this lease, and its reply
-- KEYS[2…] held     keys    per name the `holders` and the `meta`, as in `renew`; then the keys of the commands
-- ARGV[1]  number   int     the number of this run for the lease, from 1
-- ARGV[2]  keep_ms  int     how long a request that was sent before can still arrive
-- ARGV[3]  names    int     how many names the lease holds
-- ARGV[4…] words    bytes   the token of each name; then, for each command, the number of its words and the words
-- returns  as `lock/guard`
local holders, meta
-- uses     numbers, leases, guard, revoke
local before = answered()
if before then
  return before
end
for at = 1, tonumber(names) do
  holders, meta = held[2 * at - 1], held[2 * at]
  local number, mark = fence_of(words[at])
  if not number or mark ~= '' then
    -- slow path
    return mark == 'R' and reason_of(holders, words[at], -2) or 0
  end
end
return run()
