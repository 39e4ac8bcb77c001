-- Give all levels of a path one fencing token, larger than all that were granted at any of them (P8).
--
-- KEYS[1…] metas   hash   fence, ttl, held, line; and token -> `mode fence [mark]`; one for each level
-- ARGV[1…] tokens  bytes  token of the holder at each level
-- returns  int  the fencing token; or 0 if one of the leases has ended, or has a mark
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
  return given[1] -- P6: asked again
end
local number = math.max(newest + 1, (micros()))
local text = digits(number)
for level, meta in ipairs(metas) do -- defect: modes-sealed
  redis.call('HSET', meta, 'fence', text, tokens[level], modes[level] .. ' ' .. text)
  -- W21: the counts are the same, so their witness changes with the fencing token.
  local before, held = known[level][2], known[level][3]
  if before and held and string.sub(held, 1, #before + 1) == before .. ' ' then
    redis.call('HSET', meta, 'held', text .. string.sub(held, #before + 1))
  end
end
return number
