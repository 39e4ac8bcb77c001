-- Run commands of the holder's own if its lease is the current one, and never twice.
--
-- KEYS[1]  holder   string  `token fence` of the current holder
-- KEYS[2]  record   string  number of the last run for this token, and what it answered
-- KEYS[3…] theirs   any     the keys of the commands
-- ARGV[1]  token    bytes   who asks
-- ARGV[2]  number   int     which run for this token this is, from 1
-- ARGV[3]  keep_ms  int     how long a request that was sent before may still come
-- ARGV[4…] words    bytes   of each command the number of its words, then the words
-- returns  the answers, up to the first error, as an array in Redis's protocol; 0 when the token does not hold the
--          lock, and nothing was run; -1 when a later run has overtaken this one
-- uses     guard
local before = answered()
if before then
  return before
elseif string.match(redis.call('GET', holder) or '', '^%S+') ~= token then
  return 0
end
return run()
