-- Who holds a mutex.
-- Needs the names: holder, fence.

-- Returns the holder's token and fencing token, or nothing.
local function held_by()
  local value = redis.call('GET', holder)
  if value then
    local token, number = string.match(value, '^(%S+) (%d+)$')
    return token or value, tonumber(number) or 0 -- other libraries put any text of their own there
  end
end

-- The last fencing token; it stands beside the holder's, if that one is ours.
local function last_fence(number)
  return number and number > 0 and number or tonumber(redis.call('GET', fence) or 0)
end
