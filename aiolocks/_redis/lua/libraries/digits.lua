local DAY_MS = 86400000

-- A number as text. Lua would print those of 15 digits and more as 1.79e+15; as an argument of a command it needs none,
-- for which Redis takes 17 digits.
local function digits(number)
  return string.format('%.0f', number)
end
