-- Report whether the name is held on this server, and the last fencing token that it accepted. Changes nothing.
--
-- KEYS[1]  agreed  string  the largest fencing token accepted here, and the token of its holder
-- KEYS[2]  holder  string  `token fence [mark]` of the current holder
-- returns  {1 if held, else 0; fencing token, or 0; server time (ms) until which it is cooling (W18), or 0}
-- uses     numbers, mutex
local number = string.match(redis.call('GET', agreed) or '', '^%d+') or 0
local _, _, mark = held_by()
local kept_until_ms = 0
if mark == 'C' then
  kept_until_ms = math.floor(micros() / 1000) + math.max(redis.call('PTTL', holder), 0)
end
return { mark and 1 or 0, tonumber(number), kept_until_ms }
