-- Hands over what is free to the first waiter in the queue whose session can be notified. For waiters with `min_uptime`
-- (W22) it also reads the server's uptime: a server that restarted with less data does not know all holders.
-- Needs the names: queue, waiters; of the primitive can_grant, full, grant, take_back, backlog, busy_for; judge for
-- `first_waits`; and `address` and `queue`.

-- Returns the uptime in seconds; or nil if this user has no right to run INFO.
local function seconds_up()
  local told = redis.pcall('INFO', 'server')
  return type(told) == 'string' and tonumber(string.match(told, 'uptime_in_seconds:(%d+)'))
end

local function uptime_unknown()
  return redis.error_reply(
    'NOPERM min_uptime has to know how long the server has been up: give this Redis user the right +info'
  )
end

-- equivalent: constant, -2 is larger
local young_ms = -2 -- for how long the server is too young for a request or waiter; -2: it is old enough

local uptime -- in seconds, asked once for all that come first in the queue; false if it is not known

-- True if the server is old enough for the first waiter. Without the right to ask it is not: the waiters re-check soon.
local function is_up_for(needed_s)
  if uptime == nil then
    uptime = seconds_up() or false
  end
  local missing = uptime and needed_s - uptime or 1
  if missing > 0 then
    young_ms = math.max(young_ms, 1000 * missing)
  end
  return missing <= 0
end

-- Returns for how many ms nothing can be granted: the longer of `busy_for` and the time until the server is old enough.
local function not_before()
  return math.max(busy_for(), young_ms)
end

local base = string.sub(queue, 1, -7) -- the prefix of all other keys of the name
-- defect: W21-entries
local MOST_LOOKED_AT = 50 -- W21: maximum number of entries, dead sessions and refusals included
local looked_at = 0
local more = false -- something can still be free
local held_back = false -- the first waiter has to wait, and so have all behind it

-- W2: the session whose first waiter was removed moves to the place of its next one.
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

-- Grants to a waiter of another session, if that session can be notified (W1). Returns false otherwise.
local function hand_to(head, line, entry, next_entry, token, ttl_ms, permits, polls)
  if not polls and subscribers(head) == 0 then
    return false
  end
  local life_left = not next_entry and redis.call('PTTL', line)
  redis.call('ZREM', line, entry)
  -- defect: W11-two-looks
  local _, text = grant(token, polls and math.min(2 * polls, ttl_ms) or ttl_ms, permits)
  if polls or notify(head, token, text, ttl_ms) then -- defect: W9-notify
    move_on(head, line, next_entry)
    return true
  end
  take_back(token)
  redis.call('ZADD', line, redis.call('ZSCORE', queue, head), entry) -- the session still has its place
  if life_left then
    redis.call('PEXPIRE', line, life_left .. '')
  end
  return false
end

-- W2: waiters of the session that asks return to the queue if they were passed over, because the reply can reach them.
-- Returns the place of the session in the queue, if it had one.
local function stand_again()
  local rank = redis.call('ZRANK', queue, session)
  if not rank and redis.call('EXISTS', waiters) == 1 then -- defect: W2-stand-again
    keep_queue()
  end
  return rank
end

-- W18: notifies the first session that lives and can be notified, among the first MOST_LOOKED_AT, to re-check in
-- *left_ms*, when the cooling lease ends. If it is the session that asks, *grants* gets a fence of -3 instead. Earlier
-- sessions keep their places: the script of that re-check drops dead ones and passes over the others (W2).
local function tell_when(grants, left_ms)
  for _, head in ipairs(redis.call('ZRANGE', queue, '0', MOST_LOOKED_AT - 1)) do
    -- On a Cluster whose slot is being moved, the other node can have a session's key. Such a session counts as alive.
    if redis.pcall('EXISTS', base .. ':q:' .. head) ~= 0 then
      if head == session then
        grants[#grants + 1], grants[#grants + 2], grants[#grants + 3] = 'later', -3, left_ms
        return
      elseif subscribers(head) > 0 then
        notify(head, 'later', '-3', left_ms) -- defect: W18-told
        return
      end
    end
  end
end

-- W26: true if the first waiter has to wait, and can be notified (W12), so that `hand_over` would do nothing.
local function first_waits()
  local head = redis.call('ZRANGE', queue, '0', '0')[1]
  local line = head and string.sub(queue, 1, -6) .. 'q:' .. head
  local entry = head and redis.call('ZRANGE', line, '0', '0')[1]
  if entry then
    local token, share = string.match(entry, '^(%S+) %d+ (%d+)')
    local verdict, amount = judge(share + 0, token)
    return verdict == 'later' and (amount == 0 or head == session or subscribers(head) > 0) -- defect: W26-first
  end
end

-- Grants to the first waiters, and notifies their sessions. Grants for the session that asks are added to the list
-- *grants* instead, as token, fence, ttl_ms. A fence of -1 means "refused", with the limit in force as the TTL. A fence
-- of -2 means "more" (W21): something can still be free; this session and that of the first waiter are to ask again.
-- W9: it cannot stop half-way. Its first write removes an entry or sets an expiry, which the server accepts even at its
-- memory limit, and then all others. No session is notified before its entry is removed: a server that refuses all
-- writes has then refused that one. PUBLISH and NUMSUB, which the user's rights can forbid, are protected calls.
-- *rank* is the place of the session in the queue, if known; or -1 if it is in the queue or has no waiters.
local function hand_over(grants, rank)
  rank = tonumber(rank) or stand_again()
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
      redis.call('ZREM', queue, head) -- W2: a dead session -- defect: W2-dead
    else
      -- W4: the waiter is granted its own terms, not those of the request that hands over.
      local token, ttl_ms, permits, needed_s = string.match(entry, '^(%S+) (%d+) (%d+) ?(%d*)') -- defect: W4-terms
      -- W11: a session without a channel is called `poll<ms>-…`, and finds its grant at its next re-check.
      local polls = not here and tonumber(string.match(head, '^poll(%d+)%-')) -- defect: W11-polls
      local verdict, amount = 'yes', 1
      if can_grant then
        verdict, amount = can_grant(permits, token, true)
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
        -- W12: a head that cannot be reached, and waits for more than is free, must not block the others.
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
          -- slow path: another session has to be notified
          given = hand_to(head, line, entry, next_entry, token, ttl_ms, permits, polls)
          if not given then
            redis.call('ZREM', queue, head) -- W2: its next re-check puts it back -- defect: W2-passed-over
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
