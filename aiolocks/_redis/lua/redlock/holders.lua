-- Say who holds the name on this server. Changes nothing.
--
-- KEYS[1]  agreed  string  `fencing token` and whose it is: the largest accepted here
-- KEYS[2]  holder  string  `token fence [mark]` of the current holder
-- returns  as `lock/holders` does; with the fencing token that was accepted here, if it is of the same holder
local value = redis.call('GET', holder)
local answer = { 0 }
local token, fence, mark = string.match(value or '', '^(%S+) (%d+) ?(%a?)$')
if value and mark ~= 'C' then -- which is kept for a while behind its holder
  local number, owner = string.match(redis.call('GET', agreed) or '', '^(%d+) (%S+)$')
  -- One secret everywhere, behind the 11 letters of the session that speaks to the server; see tokens.py.
  if owner and token and string.sub(owner, 12) == string.sub(token, 12) then
    fence = number
  end
  answer[2], answer[3], answer[4], answer[5] = token or value, fence or '0', redis.call('PTTL', holder), '1'
end
return answer
