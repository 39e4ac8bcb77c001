-- Report who holds the lock. Changes nothing.
--
-- KEYS[1]  holder  string  `token fence [mark]` of the current holder; its TTL is the lease
-- ARGV[1]  first   int     place of the first holder to report; there is one at most
-- returns  {place to continue from, always 0; and for each holder, in one list, its token, its fencing token or 0, the
--          ms that its lease lasts unless renewed or -1 if it has no end, its permits}
local value = first == '0' and redis.call('GET', holder)
local token, fence, mark = string.match(value or '', '^(%S+) (%d+) ?(%a?)$')
local answer = { 0 }
if value and mark ~= 'C' then -- W18: a cooling lease has no holder
  answer[2], answer[3], answer[4], answer[5] = token or value, fence or '0', redis.call('PTTL', holder), '1'
end
return answer
