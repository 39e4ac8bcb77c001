-- Every script that does not know the number for sure goes through here: it is counted anew where the witnesses differ,
-- and permits whose holders have gone come back. Nothing is changed when there are none, so that a request which the
-- server then refuses, for want of memory, has changed nothing.
-- Needs the names: holders, meta, now_ms, limit_in_force, newest, heaviest, longest, counted, used, members, first_end,
-- kept_until, settled, MOST, backlog, note.
settled = true
local count = redis.call('ZCARD', holders)
local anew = members ~= count or (not counted and count > 0)
if count == 0 and members > 0 then
  -- Redis itself removed the set, as all leases in it had run out: drop what is known of those who held.
  used, members, first_end, kept_until = 0, 0, 0, 0
  redis.call('DEL', meta)
  if limit_in_force > 0 then
    redis.call('HSET', meta, 'limit', limit_in_force, 'fence', newest, 'line', '1')
    redis.call('PEXPIRE', meta, math.max(DAY_MS, 2 * longest))
  end
elseif anew then
  -- uses  count
end
local passed = count > 0 and (anew or first_end <= now_ms or first_end > now_ms + longest)
if passed then
  -- uses  drop_ended
end
if anew or passed then
  note()
end
