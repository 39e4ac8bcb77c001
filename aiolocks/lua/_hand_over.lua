-- Handing over what is free to whoever has waited longest, and can be told.
-- Needs the names: queue, waiters, session, channels, keep_queue, subscribers; and from the primitive: admits,
-- next_fence, grant, revoke, exclusive.

local stem = string.sub(queue, 1, -string.len('queue') - 1)

-- Who is first in the queue. Those of this session who were passed over stand in it again: the reply can reach them.
local function first_session()
  local rank = redis.call('ZRANK', queue, session)
  if not rank and redis.call('EXISTS', waiters) == 1 then
    keep_queue()
  end
  return rank == 0 and session or redis.call('ZRANGE', queue, 0, 0)[1]
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

-- Takes the first waiter out of its session's line, which so moves to the place of the next.
local function take_out(head, line, entry, next_entry)
  redis.call('ZREM', line, entry)
  if next_entry then
    redis.call('ZADD', queue, redis.call('ZSCORE', line, next_entry), head)
  else
    redis.call('ZREM', queue, head)
  end
end

-- Gives a waiter of another session what it waits for, and says whether it could be told; if not, nothing is given.
local function hand_to(head, line, entry, next_entry, token, ttl_ms, permits, deaf)
  if not deaf and subscribers(head) == 0 then
    return false
  end
  local ticket, life_left = redis.call('ZSCORE', line, entry), redis.call('PTTL', line)
  take_out(head, line, entry, next_entry)
  local number, text = next_fence()
  grant(token, deaf and math.min(2 * deaf, tonumber(ttl_ms)) or ttl_ms, permits, number, text)
  if deaf or tell(head, token, number, ttl_ms) then
    return true
  end
  revoke(token)
  redis.call('ZADD', line, ticket, entry)
  redis.call('PEXPIRE', line, life_left)
  return false
end

-- Gives what is free to whoever is first, and tells them. Grants for the asking session are returned instead, as a
-- list of {token, fence, ttl_ms}; a fence of -1 says "refused", with the limit in force in place of the TTL.
-- It cannot stop half-way: its first write takes an entry out, and after a write that frees memory the server
-- accepts all others, even at its memory limit. Nobody is told before it is so: a server that refuses writes
-- altogether has then refused that one. PUBLISH and NUMSUB, which rights may forbid, are protected calls.
local function hand_over(mine)
  local head = first_session()
  while head do
    local here = head == session
    local line = here and waiters or stem .. 'q:' .. head
    local first = redis.call('ZRANGE', line, 0, 1)
    local entry, next_entry = first[1], first[2]
    if not entry then
      redis.call('ZREM', queue, head) -- a dead session
    else
      local token, ttl_ms, permits = string.match(entry, '^(%S+) (%d+) (%d+)')
      local deaf = not here and polling(head)
      local verdict, amount = admits(tonumber(permits), token)
      if verdict == 'never' then
        take_out(head, line, entry, next_entry)
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
        local given = here or hand_to(head, line, entry, next_entry, token, ttl_ms, permits, deaf)
        if here then
          take_out(head, line, entry, next_entry)
          local number, text = next_fence()
          grant(token, ttl_ms, permits, number, text)
          mine[#mine + 1] = { token, number, ttl_ms }
        elseif not given then
          redis.call('ZREM', queue, head) -- passed over; its own next re-check puts it back
        end
        if given and exclusive then
          return mine
        end
      end
    end
    head = redis.call('ZRANGE', queue, 0, 0)[1]
  end
  return mine
end
