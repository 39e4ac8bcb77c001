-- Publish the host and process of a session, and the names and notes of its leases (W23). All of it expires.
--
-- KEYS[1]  session  hash   host, pid; and for each lease that has lasted for a while `holder\0task`, by the digest of its
--                          token, and its note, by the digest and `n`
-- ARGV[1]  life_ms  int    how long it lasts without being written again
-- ARGV[2]  gone     int    how many fields to remove
-- ARGV[3…] words    bytes  these; then fields and values to write
-- returns  1 if it was there before; 0 if not, and names that were written before are gone
-- uses     numbers
local known = redis.call('PEXPIRE', session, life_ms) -- first: without this right nothing is written that never expires
local ended = tonumber(gone)
if ended > 0 then
  redis.call('HDEL', session, spread(words, 1, ended))
end
redis.call('HSET', session, spread(words, ended + 1, #words))
redis.call('PEXPIRE', session, life_ms)
return known
