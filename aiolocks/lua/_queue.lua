-- The FIFO queue that all primitives share. `queue` orders sessions by the ticket of their first waiter;
-- `…:q:<session>` orders one session's waiters, as entries `token ttl_ms permits`, and lives only as long as the
-- session keeps asking. So a thousand waiters of a dead process are skipped in one step.
-- Needs the names: queue, waiters, session, channels, life_ms; and from the primitive: admits, next_fence, grant,
-- revoke, busy_for.

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

-- Does anybody wait? Those of this session who were passed over stand in line again: the reply can reach them.
local function awaited()
  if redis.call('EXISTS', queue, waiters) == 0 then
    return false
  end
  if redis.call('EXISTS', waiters) == 1 then
    keep_queue()
  end
  return true
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

local function tell(other, token, number, terms)
  local message = token .. ' ' .. digits(number) .. ' ' .. terms .. ' ' .. string.sub(stem, 1, -2)
  local reply = redis.pcall('PUBLISH', channels .. other, message)
  return not (type(reply) == 'table' and reply.err)
end

-- A session without a channel names itself `poll<ms>-…`: it finds its grant at its next re-check.
local function polling(other)
  return tonumber(string.match(other, '^poll(%d+)%-'))
end

local function take_out(head, line, entry)
  redis.call('ZREM', line, entry)
  place(head)
end

-- Gives what is free to whoever is first, and tells them. Grants for the asking session are returned instead, as a
-- list of {token, fence, ttl_ms}; a fence of -1 says "refused", with the limit in force in place of the TTL.
-- It cannot stop half-way: its first write takes an entry out, and after a write that frees memory the server
-- accepts all others, even at its memory limit. Nobody is told before it is so: a server that refuses writes
-- altogether has then refused that one. PUBLISH and NUMSUB, which rights may forbid, are protected calls.
local function hand_over(mine)
  while true do
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not head then
      return mine
    end
    local line = line_of(head)
    local first = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
    local entry, its_ticket = first[1], first[2]
    if not entry then
      redis.call('ZREM', queue, head) -- a dead session
    else
      local token, ttl_ms, permits = string.match(entry, '^(%S+) (%d+) (%d+)')
      local here, deaf = head == session, polling(head)
      local verdict, amount = admits(tonumber(permits))
      if verdict == 'never' then
        take_out(head, line, entry)
        if here then
          mine[#mine + 1] = { token, -1, amount }
        else
          tell(head, token, -1, amount)
        end
      elseif verdict == 'later' then
        -- An unreachable head that waits for more than is free would keep the rest from what is.
        if amount == 0 or here or deaf or subscribers(head) > 0 then
          return mine
        end
        redis.call('ZREM', queue, head)
      else
        local reachable = here or deaf or subscribers(head) > 0
        if reachable then
          local number = next_fence()
          local life_left = redis.call('PTTL', line)
          take_out(head, line, entry)
          grant(token, deaf and not here and math.min(2 * deaf, tonumber(ttl_ms)) or ttl_ms, permits, number)
          if here then
            mine[#mine + 1] = { token, number, ttl_ms }
          elseif not deaf and not tell(head, token, number, ttl_ms) then
            revoke(token)
            redis.call('ZADD', line, its_ticket, entry)
            redis.call('PEXPIRE', line, life_left)
            reachable = false
          end
        end
        if not reachable then
          redis.call('ZREM', queue, head) -- passed over; its own next re-check puts it back
        end
      end
    end
  end
end
