-- Run commands of a holder's own if its lease is a current one, and never twice.
--
-- KEYS[1]  holders  zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  record   string  number of the last run for this token, and what it answered
-- KEYS[3…] theirs   any     the keys of the commands
-- ARGV[1]  token    bytes   who asks
-- ARGV[2]  number   int     which run for this token this is, from 1
-- ARGV[3]  keep_ms  int     how long a request that was sent before may still come
-- ARGV[4…] words    bytes   of each command the number of its words, then the words
-- returns  the answers, up to the first error, as an array in Redis's protocol; 0 when the token holds nothing, and
--          nothing was run; -1 when a later run has overtaken this one
-- uses     clock, guard
local before = answered()
if before then
  return before
elseif tonumber(redis.call('ZSCORE', holders, token) or 0) * 1000 <= micros() then
  return 0
end
return run()
