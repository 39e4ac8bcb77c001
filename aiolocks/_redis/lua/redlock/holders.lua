-- Report who holds the name on this server. Changes nothing.
--
-- KEYS[1]  agreed  string  the largest fencing token accepted here, and the token of its holder
-- KEYS[2]  holder  string  `token fence [mark]` of the current holder
-- returns  as `lock/holders`, with the fencing token that was accepted here for the same holder
local value = redis.call('GET', holder)
local answer = { 0 }
local token, fence, mark = string.match(value or '', '^(%S+) (%d+) ?(%a?)$')
if value and mark ~= 'C' then -- W18: a cooling lease has no holder
  local number, owner = string.match(redis.call('GET', agreed) or '', '^(%d+) (%S+)$')
  -- The secret is the same on all servers; the 11 letters before it name the session there (tokens.py).
  if owner and token and string.sub(owner, 12) == string.sub(token, 12) then
    fence = number
  end
  answer[2], answer[3], answer[4], answer[5] = token or value, fence or '0', redis.call('PTTL', holder), '1'
end
return answer
