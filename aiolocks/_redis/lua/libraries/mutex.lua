-- A mutex being handed over by whoever has found it free.
-- Needs the names: holder.

local backlog = false -- the only lease there is ends by itself
local admits, full -- nothing to ask: one holder can always be admitted then, and no other beside it

local function revoke(token)
  redis.call('DEL', holder)
end
