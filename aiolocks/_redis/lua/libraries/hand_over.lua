-- Handing over what is free to the first waiter in the queue whose session can be told.
-- Needs the names: queue, waiters, session; of the primitive can_grant, full, grant, take_back, backlog; and `queue` and
-- `uptime`.
-- uses     uptime

local base = string.sub(queue, 1, -7) -- with which every key beside the holder begins
-- defect: W21-entries
local MOST_LOOKED_AT = 50 -- entries, the dead and the refused among them: a script keeps all others from the server
local looked_at = 0
local more = false -- something may still be free
local held_back = false -- the first in line waits, and so do all behind it

-- The session whose first waiter was taken out of its line moves to the place of the next.
local function move_on(head, line, next_entry)
  if next_entry then
    redis.call('ZADD', queue, redis.call('ZSCORE', line, next_entry), head) -- defect: W2-move-on
  else
    redis.call('ZREM', queue, head)
  end
end

local function notify(other, token, number, terms)
  local message = token .. ' ' .. number .. ' ' .. terms .. ' ' .. base
  local channel, publish = channel_of(other)
  local reply = redis.pcall(publish, channel, message) -- defect: W9-publish
  return not (type(reply) == 'table' and reply.err)
end

-- Gives a waiter of another session what it waits for, and says whether it could be told; if not, nothing is given.
local function hand_to(head, line, entry, next_entry, token, ttl_ms, permits, polls)
  if not polls and subscribers(head) == 0 then
    return false
  end
  local life_left = not next_entry and redis.call('PTTL', line)
  redis.call('ZREM', line, entry)
  -- defect: W11-two-looks
  local _, text = grant(token, polls and math.min(2 * polls, tonumber(ttl_ms)) or ttl_ms, permits)
  if polls or notify(head, token, text, ttl_ms) then -- defect: W9-notify
    move_on(head, line, next_entry)
    return true
  end
  take_back(token)
  redis.call('ZADD', line, redis.call('ZSCORE', queue, head), entry) -- the session still stands at its place
  if life_left then
    redis.call('PEXPIRE', line, life_left)
  end
  return false
end

-- Tells the session of the first in line that what is in the way ends in so many ms, and that it is to look again then: by
-- the reply, to whose list *grants* is added a fence of -3, if it is the asking one. Without it, it would look when the
-- lease that was in the way had been to end, or in a second.
local function tell_when(grants, left_ms)
  local head = redis.call('ZRANGE', queue, '0', '0')[1]
  if head == session then
    grants[#grants + 1], grants[#grants + 2], grants[#grants + 3] = 'later', -3, left_ms
  elseif head then
    notify(head, 'later', '-3', left_ms)
  end
end

-- Gives what is free to the first waiters, and tells them. Grants for the asking session are added to the list *grants*
-- instead, as token, fence, ttl_ms; a fence of -1 says "refused", with the limit in force in place of the TTL; and one of
-- -2 says "more": something may still be free, and the session that reads it is to ask again, which both the asking
-- session and that of the first in line are told.
-- It cannot stop half-way: its first write takes an entry out or sets an expiry, which the server accepts even
-- at its memory limit, and then all others. No session is told before its entry is out: a server that refuses writes
-- altogether has then refused that one. PUBLISH and NUMSUB, which rights may forbid, are protected calls.
-- *rank*: the session's place in the queue, if that is known.
local function hand_over(grants, rank)
  rank = tonumber(rank) or redis.call('ZRANK', queue, session)
  if not rank and redis.call('EXISTS', waiters) == 1 then -- defect: W2-stand-again
    keep_queue() -- waiters of this session that were passed over stand in it again: the reply can reach them
  end
  local head = rank == 0 and session or redis.call('ZRANGE', queue, '0', '0')[1] -- defect: W2-first
  local all_free_given = false
  while head and looked_at < MOST_LOOKED_AT do -- defect: W21-looked-at
    looked_at = looked_at + 1
    local here = head == session
    local line = here and waiters or base .. ':q:' .. head
    -- equivalent: '2', the third is not read
    local first = redis.call('ZRANGE', line, '0', '1') -- defect: W2-line
    local entry, next_entry = first[1], first[2]
    if not entry then
      redis.call('ZREM', queue, head) -- a dead session -- defect: W2-dead
    else
      local token, ttl_ms, permits, needed_s = string.match(entry, '^(%S+) (%d+) (%d+) ?(%d*)') -- defect: W4-terms
      -- A session without a channel names itself `poll<ms>-…`: it finds its grant at its next re-check.
      local polls = not here and tonumber(string.match(head, '^poll(%d+)%-')) -- defect: W11-polls
      local verdict, amount = 'yes', 1
      if can_grant then
        verdict, amount = can_grant(tonumber(permits), token, true)
      end
      if needed_s ~= '' and verdict == 'yes' and not is_up_for(needed_s) then
        verdict = 'later'
      end
      if verdict == 'never' then
        redis.call('ZREM', line, entry)
        move_on(head, line, next_entry)
        if here then
          grants[#grants + 1], grants[#grants + 2], grants[#grants + 3] = token, -1, amount
        else
          -- slow path
          notify(head, token, '-1', amount)
        end
      elseif verdict == 'later' then
        -- An unreachable head that waits for more than is free would keep the rest from what is.
        if amount == 0 or here or polls or subscribers(head) > 0 then -- defect: W12-later
          all_free_given, held_back = true, true
          break
        end
        redis.call('ZREM', queue, head)
      else
        local given = here
        if here then
          redis.call('ZREM', line, entry) -- defect: W9-taken-out
          local _, text = grant(token, ttl_ms, permits)
          move_on(head, line, next_entry)
          grants[#grants + 1], grants[#grants + 2], grants[#grants + 3] = token, text, ttl_ms
        else
          -- slow path: another session has to be told
          given = hand_to(head, line, entry, next_entry, token, ttl_ms, permits, polls)
          if not given then
            redis.call('ZREM', queue, head) -- passed over; its own next re-check puts it back -- defect: W2-passed-over
          end
        end
        if given and (not can_grant or full and full()) then
          all_free_given = true
          break
        end
      end
    end
    head = redis.call('ZRANGE', queue, '0', '0')[1] -- defect: W2-first
  end
  if not more and (backlog or (head and not all_free_given)) then -- defect: W21-more
    more = true
    grants[#grants + 1], grants[#grants + 2], grants[#grants + 3] = 'more', -2, 0 -- defect: W21-say-more
    if head and head ~= session then
      -- slow path
      notify(head, 'more', '-2', '0')
    end
  end
end
