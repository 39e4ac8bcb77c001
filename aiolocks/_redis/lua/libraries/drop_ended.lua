-- Gives back the permits of leases that have run out.
-- Needs the names: holders, meta, now_ms, limit_in_force, newest, heaviest, longest, used, members, first_end,
-- kept_until, MOST, backlog.
local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', 0, MOST)
if ended[1] then
  local known_of = redis.call('HMGET', meta, unpack(ended))
  redis.call('ZREM', holders, unpack(ended))
  redis.call('HDEL', meta, unpack(ended))
  local unsure = false
  members = members - #ended
  for _, terms in ipairs(known_of) do
    local weight = string.match(terms or '', '^%d+')
    used = used - (weight or 0)
    unsure = unsure or not weight -- it may have been counted as more
  end
  if unsure then
    -- uses  count
  end
end
backlog = #ended == MOST
first_end = tonumber(redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0)
