-- Taking a waiter out of this session's line.
-- Needs the names: waiters, keep_queue.
local function leave(entry)
  if redis.call('ZREM', waiters, entry) == 1 then
    keep_queue()
  end
end
