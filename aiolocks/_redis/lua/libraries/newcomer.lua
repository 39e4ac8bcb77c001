-- What each `grant` asks first, of whatever kind.
-- Needs the names: needed_s, tombstone; and `hand_over`.

-- W22: before anything is written.
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

-- W10, W16: whether nothing is granted to this token any more. Its undo has overtaken this request; or its lease has a
-- *mark*, and the request would wait in line behind itself, or be granted again.
local function is_withdrawn(mark)
  if redis.call('EXISTS', tombstone) == 1 then -- defect: W10-buried
    return true
  end
  return mark ~= ''
end
