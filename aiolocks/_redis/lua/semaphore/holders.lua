-- Report who holds permits; or a name in some mode, which then replaces the permits. Changes nothing.
--
-- KEYS[1]  holders  zset  token -> server time (ms) at which its lease ends
-- KEYS[2]  meta     hash  token -> `permits fence [mark]`
-- ARGV[1]  first    int   place of the first holder to report, from 0
-- returns  {place to continue from, or 0; and for each holder the same as `lock/holders`, with 0 for unknown permits}
-- uses     numbers, leases
local from = tonumber(first)
local found = redis.call('ZRANGE', holders, from, from + MOST - 1, 'WITHSCORES')
local tokens, answer = {}, { #found == 2 * MOST and from + MOST or 0 }
for at = 1, #found, 2 do
  tokens[#tokens + 1] = found[at]
end
local known = tokens[1] and redis.call('HMGET', meta, spread(tokens, 1, #tokens))
for at, token in ipairs(tokens) do
  local left_ms = tonumber(found[2 * at]) - now_ms
  local permits, fence, mark = string.match(known[at] or '', '^(%d+) (%d+) ?(%a?)')
  if left_ms > 0 and mark ~= 'C' and token ~= PAUSE then
    local last = #answer
    answer[last + 1], answer[last + 2] = token, fence or '0'
    answer[last + 3], answer[last + 4] = left_ms, permits or '0'
  end
end
return answer
