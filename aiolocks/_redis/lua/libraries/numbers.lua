-- The server's clock, which all scripts use, as clients' clocks differ; numbers as text; lists as arguments.

local DAY_MS = 86400000

-- Returns the time in µs, which is below 2^53 until the year 2255; and the same as text: Lua would print 1.79e+15.
local function micros()
  local time = redis.call('TIME')
  local text = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
  return text + 0, text
end

-- Returns a number as text: Lua would print 1.79e+15. For up to 14 digits `.. ''` is enough. A time is passed to a
-- command as text, because Redis 7.2.0 to 7.2.4 writes a number such as 100000000 as 1e+08 (redis/redis#13113).
local function digits(number)
  return string.format('%.0f', number)
end

-- Returns the entries of a list between two places, at least one, as arguments. Some managed servers forbid `unpack`.
local function spread(list, from, to)
  if from >= to then
    return list[to]
  elseif to - from < 8 then -- equivalent: comparison + constant, the same entries one by one
    return list[from], spread(list, from + 1, to)
  end
  return list[from], list[from + 1], list[from + 2], list[from + 3], list[from + 4], list[from + 5], list[from + 6],
    list[from + 7], spread(list, from + 8, to) -- in eights, because each step copies all that follow
end
