-- The server's own clock, the only one that scripts go by: clients' clocks differ.

-- Returns the time in µs, below 2^53 until the year 2255; and the same as text, as Lua would print 1.79e+15.
local function micros()
  local time = redis.call('TIME')
  local text = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
  return tonumber(text), text
end
