-- Give all levels of a path one fencing token, larger than any that was given at one of them.
--
-- KEYS[1…] metas   hash   fence, ttl, held, line; and token -> `mode fence [mark]`; one for each level
-- ARGV[1…] tokens  bytes  who holds it, at each level
-- returns  int  the fencing token; or 0 when one of the leases is not there any more, or has a mark
-- uses     numbers
local given, newest, modes, alike, known = {}, 0, {}, true, {} -- equivalent: 1, smaller than any time
for level, meta in ipairs(metas) do
  local found = redis.call('HMGET', meta, tokens[level], 'fence', 'held')
  local mode, number = string.match(found[1] or '', '^(%d+) (%d+)$')
  if not mode then
    return 0
  end
  modes[level], given[level], known[level] = mode, tonumber(number), found
  alike = alike and given[level] == given[1]
  newest = math.max(newest, tonumber(found[2] or 0))
end
if alike then
  return given[1] -- asked again: the same token
end
local number = math.max(newest + 1, (micros()))
local text = digits(number)
for level, meta in ipairs(metas) do -- defect: modes-sealed
  redis.call('HSET', meta, 'fence', text, tokens[level], modes[level] .. ' ' .. text)
  -- What is held is as it was, and may be relied on as before: the witness beside it goes along.
  local before, held = known[level][2], known[level][3]
  if before and held and string.sub(held, 1, #before + 1) == before .. ' ' then
    redis.call('HSET', meta, 'held', text .. string.sub(held, #before + 1))
  end
end
return number
