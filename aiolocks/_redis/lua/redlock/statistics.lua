-- Say whether the name is held on this server, and the last fencing token that the server accepted. Changes nothing.
--
-- KEYS[1]  agreed  string  `fencing token` and whose it is: the largest accepted here
-- KEYS[2]  holder  string  `token fence [mark]` of the current holder
-- returns  {1 when held, else 0; fencing token, or 0; server time (ms) until which only min_hold keeps it, or 0}
-- uses     numbers, mutex
local number = string.match(redis.call('GET', agreed) or '', '^%d+') or 0
local _, _, mark = held_by()
local kept_until_ms = 0
if mark == 'C' then
  kept_until_ms = math.floor(micros() / 1000) + math.max(redis.call('PTTL', holder), 0)
end
return { mark and 1 or 0, tonumber(number), kept_until_ms }
