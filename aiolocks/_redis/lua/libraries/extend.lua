-- A mutex being held on to.
-- Needs the names: holder.

-- No script ever shortens a lease: the holder may count on what it was told before.
local function extend(ttl_ms)
  if redis.call('PTTL', holder) < tonumber(ttl_ms) then
    redis.call('PEXPIRE', holder, ttl_ms)
  end
end
