-- Give all levels of a path one fencing token, larger than all that were granted at any of them (P8).
--
-- KEYS[1…] keys    zset, hash  for each level the `holders` and the `meta`, as in `renew`
-- ARGV[1…] tokens  bytes       token of the holder at each level
-- returns  int  the fencing token; or 0 if one of the leases has ended, or has a mark
local holders, meta
-- uses     numbers, leases
local given, largest, modes, alike, known = {}, 0, {}, true, {} -- equivalent: 1, smaller than any time
for level, token in ipairs(tokens) do
  holders, meta = keys[2 * level - 1], keys[2 * level]
  local found = redis.call('HMGET', meta, token, 'fence', 'held')
  local mode, number = string.match(found[1] or '', '^(%d+) (%d+)$')
  -- The terms of a lease that has ended stay until a script of that level removes them. With a larger fencing token
  -- than its next holder's, its late writes would pass.
  if not mode or not is_live(token) then -- defect: P8-ended
    return 0
  end
  modes[level], given[level], known[level] = mode, tonumber(number), found
  alike = alike and given[level] == given[1]
  largest = math.max(largest, tonumber(found[2] or 0))
end
if alike then
  return given[1] -- P6: asked again
end
local number = math.max(largest + 1, now_us)
local text = digits(number)
for level, token in ipairs(tokens) do -- defect: modes-sealed
  meta = keys[2 * level]
  redis.call('HSET', meta, 'fence', text, token, modes[level] .. ' ' .. text)
  -- W21: the counts are the same, so their witness changes with the fencing token.
  local before, held = known[level][2], known[level][3]
  if before and held and string.sub(held, 1, #before + 1) == before .. ' ' then
    redis.call('HSET', meta, 'held', text .. string.sub(held, #before + 1))
  end
end
return number
