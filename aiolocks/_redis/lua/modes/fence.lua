-- Give all levels of a path one fencing token, larger than any that was given at one of them.
--
-- KEYS[1…] metas   hash   fence, ttl, held; and token -> `mode fence`; one for each level
-- ARGV[1…] tokens  bytes  who holds it, at each level
-- returns  int  the fencing token; or 0 when one of the leases is not there any more
-- uses     numbers
local given, newest, modes, alike = {}, 0, {}, true
for level, meta in ipairs(metas) do
  local mode, number = string.match(redis.call('HMGET', meta, tokens[level])[1] or '', '^(%d+) (%d+)$')
  if not mode then
    return 0
  end
  modes[level], given[level] = mode, tonumber(number)
  alike = alike and given[level] == given[1]
  newest = math.max(newest, tonumber(redis.call('HMGET', meta, 'fence')[1] or 0))
end
if alike then
  return given[1] -- asked again: the same token
end
local number = math.max(newest + 1, (micros()))
for level, meta in ipairs(metas) do
  redis.call('HSET', meta, 'fence', digits(number), tokens[level], modes[level] .. ' ' .. digits(number))
end
return number
