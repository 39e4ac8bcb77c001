-- The FIFO queue that all primitives share. `queue` orders sessions by the ticket of their first waiter;
-- `…:q:<session>` orders one session's waiters, as entries `token ttl_ms permits …`, and lives only as long as the
-- session keeps asking. So a thousand waiters of a dead process are skipped in one step.
-- Needs the names: queue, waiters, session, channels, life_ms; and from the primitive: busy_for.

-- The session has shown that it lives. Its own line is *set* to its lifetime, never extended beyond: a lease handed
-- to a session that has stopped must find that session dead when it lapses, or each of its waiters costs one lease.
-- The queue outlives the lease in the way, by a little more than needed, so as not to be extended each time.
-- *placed*: the session stands at the place of its first waiter. Returns how long the lease in the way lasts, in ms.
local function keep_queue(placed)
  redis.call('PEXPIRE', waiters, life_ms) -- first a write that is allowed at the memory limit: then so are all others
  if not placed then
    local first = redis.call('ZRANGE', waiters, 0, 0, 'WITHSCORES')
    if first[1] then
      redis.call('ZADD', queue, first[2], session)
    else
      redis.call('ZREM', queue, session)
    end
  end
  local busy_ms = busy_for()
  local needed = tonumber(life_ms)
  if busy_ms > needed then
    needed = busy_ms
  end
  if redis.call('PTTL', queue) < needed then
    redis.call('PEXPIRE', queue, needed + life_ms)
  end
  return busy_ms
end

-- PUBLISH's count would say 0 for subscribers on another node of a Cluster, and count monitors with patterns.
local function subscribers(other)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channels .. other)
  return reply.err and 0 or tonumber(reply[2])
end
