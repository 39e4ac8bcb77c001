-- The rest of a mutex, for those who wait for it.
-- Needs the names: holder.

-- How long the lease in the way lasts unless renewed, in ms; -1 when it has no end, -2 when there is none.
local function busy_for()
  return redis.call('PTTL', holder)
end
