-- Write down of which host and process a session is, and what its leases are called; all of it ends by itself.
--
-- KEYS[1]  session  hash   host, pid; and for each lease that has a name `holder\0task`, by the digest of its token
-- ARGV[1]  life_ms  int    how long that is good without being written again
-- ARGV[2]  gone     int    how many names are of leases that have ended
-- ARGV[3…] words    bytes  the digests of those; then fields and values to write
-- returns  1 if it was there before, else 0: then names that were written before are gone
-- uses     numbers
local known = redis.call('PEXPIRE', session, life_ms) -- first: without this right, nothing is written for ever
local ended = tonumber(gone)
if ended > 0 then
  redis.call('HDEL', session, spread(words, 1, ended))
end
redis.call('HSET', session, spread(words, ended + 1, #words))
redis.call('PEXPIRE', session, life_ms)
return known
