-- What each `grant` asks first, of whatever kind.
-- Needs the names: needed_s; and `hand_over`.

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
