-- Run commands of the holder, if its lease is the current one of each name, and never twice (W10).
--
-- KEYS[1]  record   string  number of the last run for this lease, and its reply
-- KEYS[2…] holders  string  `token fence [mark]` of the current holder, per name; then the keys of the commands
-- ARGV[1]  number   int     the number of this run for the lease, from 1
-- ARGV[2]  keep_ms  int     how long a request that was sent before can still arrive
-- ARGV[3]  names    int     how many names the lease holds
-- ARGV[4…] words    bytes   the token of each name; then, for each command, the number of its words and the words
-- returns  the replies up to the first error, as an array in Redis's protocol; 0 if one of the tokens does not hold its
--          name, and nothing was run; or -2, or `R` and the reason, if that is revoked; -1 if a later run has overtaken this
-- uses     numbers, mutex, guard, revoke
local before = answered()
if before then
  return before
end
for at = 1, tonumber(names) do
  local owner, _, mark = parts_of(redis.call('GET', holders[at]) or '')
  if owner ~= words[at] or mark ~= '' then -- defect: guard-compare
    -- slow path
    return owner == words[at] and mark == 'R' and reason_of(holders[at], owner, -2) or 0
  end
end
return run()
