-- Putting a semaphore's limit in force.
-- Needs the names: holders, meta, now_ms, limit_in_force, newest, heaviest, longest, used, members, kept_until, MOST,
-- limit, note.
local forgotten = heaviest == 0 and members > 0
limit_in_force = tonumber(limit)
redis.call('HSET', meta, 'limit', limit)
redis.call('PEXPIRE', meta, math.max(redis.call('PTTL', meta), DAY_MS))
if forgotten then
  -- uses  count
  note()
end
