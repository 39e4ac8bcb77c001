-- How long the server has been up, for requests that ask for that (W22): one that restarted with nothing, or with less
-- than it had, must not grant what others still hold by what it said before.
-- Needs the names: busy_for for `not_before`.

-- Returns the uptime in seconds; or nothing where the server does not say, as this user may not run INFO.
local function seconds_up()
  local told = redis.pcall('INFO', 'server')
  return type(told) == 'string' and tonumber(string.match(told, 'uptime_in_seconds:(%d+)'))
end

-- What to answer a request that asks for an uptime where the server does not say it.
local function uptime_unknown()
  return redis.error_reply(
    'NOPERM min_uptime has to know how long the server has been up: give this Redis user the right +info'
  )
end

-- For handing over, which asks it once for all who are first in line.
local uptime
-- equivalent: constant, -2 is larger
local young_ms = -2 -- for how long the server is too young, for one who asks at this moment

-- Whether the server is old enough for one who is first in line. Where this user may not ask, it is not: those who wait
-- may, and look for it in a second at the latest.
local function is_up_for(needed_s)
  if uptime == nil then
    uptime = seconds_up() or false
  end
  local missing = uptime and needed_s - uptime or 1
  if missing > 0 then
    young_ms = math.max(young_ms, 1000 * missing)
  end
  return missing <= 0
end

-- How long nothing can be had, in ms, as `busy_for` says it; or for how long the server is too young, if that is more.
local function not_before()
  return math.max(busy_for(), young_ms)
end
