-- Say whether this server is held, and the last fencing token that it accepted. Changes nothing.
--
-- KEYS[1]  agreed  string  `fencing token` and whose it is: the largest accepted here
-- KEYS[2]  holder  string  `token fence` of the current holder
-- returns  {1 when held, else 0; fencing token, or 0}
local number = string.match(redis.call('GET', agreed) or '', '^%d+') or 0
return { redis.call('EXISTS', holder), tonumber(number) }
