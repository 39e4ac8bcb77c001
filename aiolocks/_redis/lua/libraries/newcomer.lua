-- What each `grant` asks first, of whatever kind.
-- Needs the names: needed_s; holders, token, tombstone, members, is_live, expect_queue for `too_many`; and `queue` and
-- `hand_over`.

-- W26: of a newcomer that does not fit, returns how many others wait, if these are too many. It says nothing unless the
-- first waiter has to wait too (W7), the counts are right (W21), and the newcomer is not granted already (P6), as it can
-- be although the hash was deleted.
local function too_many(entry)
  local certain = redis.call('ZCARD', holders) == members and not is_live(token)
  local most = certain and redis.call('EXISTS', tombstone) == 0 and room_for(entry)
  local waiting = most and first_waits() and crowd(most)
  if waiting then
    expect_queue() -- the session may just have returned to the queue
  end
  return waiting
end

-- W22: the uptime is asked before anything is written.
if needed_s then -- defect: P9-uptime
  -- slow path
  local up = seconds_up()
  if not up then
    return uptime_unknown()
  end
  if needed_s - up > 0 then
    young_ms = 1000 * (needed_s - up)
  end
end
