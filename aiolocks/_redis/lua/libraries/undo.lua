-- The undo of a request for a lease in a set: ends the token's lease, or takes it out of the queue, and hands over.
-- It runs where a script names this library: behind the fast path of `release`.
-- Needs the names: token, terms, tombstone, tombstone_ms, min_hold_ms; of the primitive own; and `leases`, `books`,
-- `queue` and `hand_over`.

if not sure or not own then
  -- slow path
  settle()
end
local left_ms = cool(token, own, min_hold_ms) -- defect: W9-release
-- W9: the first write is allowed at the memory limit, and then all are.
local ended = (left_ms or drop(token)) and 1 or 0
if ended == 0 then
  leave(token .. ' ' .. terms .. PADDING)
end
if tombstone_ms ~= '0' then -- defect: P7-tombstone
  redis.pcall('SET', tombstone, '', 'PX', tombstone_ms) -- defect: W9-tombstone
end
local reply = { ended }
hand_over(reply) -- defect: W7-release
if left_ms and left_ms > 0 then
  tell_when(reply, left_ms)
end
if unwritten then
  note()
end
-- equivalent: constant, grants come in threes
return reply[2] and table.concat(reply, ' ') or ended -- a list would take Redis 16 KiB and a second write
