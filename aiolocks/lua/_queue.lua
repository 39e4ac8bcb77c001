-- The FIFO queue that all primitives share. `queue` orders sessions by the ticket of their first waiter;
-- `…:q:<session>` orders one session's waiters, as entries `token ttl_ms permits`, and lives only as long as the
-- session keeps asking. So a thousand waiters of a dead process are skipped in one step.
-- Needs the names: queue, waiters, session, channels, life_ms; and from the primitive: busy_for.

local stem = string.sub(queue, 1, -string.len('queue') - 1)

local function line_of(other)
  return other == session and waiters or stem .. 'q:' .. other
end

-- Puts a session at the place of its first waiter, or out of the queue if it has none.
local function place(other)
  local first = redis.call('ZRANGE', line_of(other), 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('ZADD', queue, first[2], other)
  else
    redis.call('ZREM', queue, other)
  end
end

-- The session has shown that it lives. Its own line is *set* to its lifetime, never extended beyond: a lease handed
-- to a session that has stopped must find that session dead when it lapses, or each of its waiters costs one lease.
local function keep_queue()
  redis.call('PEXPIRE', waiters, life_ms)
  place(session)
  redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', queue), tonumber(life_ms), busy_for()))
end

-- Puts the waiter in line and returns its ticket. One that comes back keeps its old ticket, unless a clock that
-- stepped back has made that one worse than a new one.
local function enqueue(entry, old_ticket)
  local ticket = tonumber(redis.call('ZSCORE', waiters, entry) or nil)
  if not ticket then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
    local own_last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')[2] or 0
    ticket = math.max(micros(), tonumber(last) + 1, tonumber(own_last) + 1)
    if tonumber(old_ticket) > 0 then
      ticket = math.min(ticket, tonumber(old_ticket))
    end
    redis.call('ZADD', waiters, digits(ticket), entry)
  end
  keep_queue()
  return ticket
end

local function leave(entry)
  if redis.call('ZREM', waiters, entry) == 1 then
    keep_queue()
  end
end

-- PUBLISH's count would say 0 for subscribers on another node of a Cluster, and count monitors with patterns.
local function subscribers(other)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channels .. other)
  return reply.err and 0 or tonumber(reply[2])
end
