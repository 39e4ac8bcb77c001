local DAY_MS = 86400000

-- Numbers as Redis wants them: Lua would print those of 15 digits and more as 1.79e+15.
local function digits(number)
  return string.format('%.0f', number)
end
