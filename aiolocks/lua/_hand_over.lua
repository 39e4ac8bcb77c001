-- Handing over what is free to whoever has waited longest, and can be told.
-- Needs the names: queue, waiters, session, channels, stem, line_of, place, keep_queue, subscribers; and from the
-- primitive: admits, next_fence, grant, revoke, exclusive.

-- Those of this session who were passed over stand in line again: the reply can reach them.
local function return_to_line()
  if not redis.call('ZSCORE', queue, session) and redis.call('EXISTS', waiters) == 1 then
    keep_queue()
  end
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
          local life_left = not here and redis.call('PTTL', line)
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
        elseif exclusive then
          return mine
        end
      end
    end
  end
end
