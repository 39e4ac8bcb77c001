-- The server's own clock, the only one that scripts go by: clients' clocks differ.

local function micros()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- A fencing token outgrows all earlier ones even when they were forgotten, because the clock has moved on.
-- Below 2^53 until the year 2255. Lua's own conversion would print it as 1.79e+15.
local DAY = 86400
local function digits(number)
  return string.format('%.0f', number)
end
