-- Run commands of the holder's own if its lease is the current one under each name, and never twice.
--
-- KEYS[1]  record   string  number of the last run for this lease, and what it answered
-- KEYS[2…] holders  string  `token fence [mark]` of the current holder, per name; then the keys of the commands
-- ARGV[1]  number   int     which run for this lease this is, from 1
-- ARGV[2]  keep_ms  int     how long a request that was sent before may still come
-- ARGV[3]  names    int     how many names are held by the lease
-- ARGV[4…] words    bytes   the token of each, then of each command the number of its words, then the words
-- returns  the answers, up to the first error, as an array in Redis's protocol; 0 when one of the tokens does not hold
--          its name, or -2 when that is revoked, and nothing was run; -1 when a later run has overtaken this one
-- uses     numbers, mutex, guard
local before = answered()
if before then
  return before
end
for at = 1, tonumber(names) do
  local owner, _, mark = parts_of(redis.call('GET', holders[at]) or '')
  if owner ~= words[at] or mark ~= '' then -- defect: guard-compare
    return owner == words[at] and mark == 'R' and -2 or 0
  end
end
return run()
