-- The FIFO queue of all primitives. `queue` orders the sessions by the ticket of their first waiter. `…:q:<session>` is
-- the line of one session: it orders its waiters, as entries `token ttl_ms permits …`, and lives only as long as the
-- session keeps asking. So a thousand waiters of a dead process are skipped in one step (W2).
-- An entry can have a fourth word: the minimum uptime of the server in seconds (W22). Older versions of the scripts do
-- not know it, and grant such an entry at any uptime; that ends with the last process of such a version.
-- Needs the names: queue, waiters; highest for `enqueue`; entries for `recheck`; first for `count_waiting`; ticket for
-- `room_for`; of the primitive busy_for, extend, instant; and `numbers` and `address`.

-- Ends each entry, and makes it longer than 64 bytes, so that Redis keeps the line as a skip list, and not packed.
local PADDING = ' ..............................'

-- The session has shown that it lives. W3: its line expires *life_ms* from now; this is set, not extended. So a stopped
-- session is dead when the lease that it was handed ends, or each of its waiters would cost the others a lease.
-- The queue outlives the current lease by a little more than needed, so that it is not extended each time.
-- *placed* is true if the session has the place of its first waiter. Returns for how many ms the current lease lasts.
local function keep_queue(placed)
  -- defect: W3-line
  redis.call('PEXPIRE', waiters, life_ms) -- W9: this write is allowed at the memory limit, and then all are
  if not placed then
    local first = redis.call('ZRANGE', waiters, 0, 0, 'WITHSCORES') -- equivalent: 1 (second), only the first is read
    if first[1] then -- equivalent: constant, there are both or neither
      redis.call('ZADD', queue, first[2], session)
    else
      redis.call('ZREM', queue, session)
    end
  end
  local busy_ms = busy_for()
  local needed = life_ms + 0
  if busy_ms > needed then
    needed = busy_ms
  end
  if redis.call('PTTL', queue) < needed then
    redis.call('PEXPIRE', queue, needed + life_ms .. '')
  end
  return busy_ms
end

-- Returns the channel on which a session is notified, and the commands for it; see `channel_of` in keys.py. A script
-- can use only sharded channels that are in the slot of its name.
local function channel_of(other)
  if string.sub(channels, -1) == '{' then
    return channels .. string.match(queue, '{(.-)}') .. '}:' .. other, 'SPUBLISH', 'SHARDNUMSUB'
  end
  return channels .. other, 'PUBLISH', 'NUMSUB'
end

-- W1: NUMSUB on this node. PUBLISH returns 0 for subscribers on another node of a Cluster, and counts patterns.
local function subscribers(other)
  local channel, _, count = channel_of(other)
  local reply = redis.pcall('PUBSUB', count, channel) -- defect: W9-count
  return reply.err and 0 or tonumber(reply[2]) -- defect: W1-listens
end

-- Removes a waiter from the line of this session.
local function leave(entry)
  if redis.call('ZREM', waiters, entry) == 1 then
    keep_queue()
  end
end

-- W8: adds an entry behind all others, also after the clock has stepped back. Returns its ticket, as a number and as
-- text; or nil if the entry is there already or cannot be added.
-- The queue has only the first ticket of each session. So a key of its own keeps the newest ticket of all for a day,
-- and the order fails only after a step of more than a day. An older version of these scripts does not write that key,
-- so the tickets in the queue count as well; they count alone if the key is missing.
-- W9: the line is written first. A key of another type, or the memory limit, then fails before anything is changed.
local function stand_last(entry)
  local ticket, text = instant()
  -- defect: W8-queue
  if redis.call('ZCOUNT', queue, text, 'inf') > 0 then -- the clock stepped back, or two came in one µs
    ticket = redis.call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2] + 1
    text = string.format('%.0f', ticket)
  end
  if redis.pcall('ZADD', waiters, 'NX', text, entry) ~= 1 then
    return
  end
  local last = tonumber(redis.pcall('SET', highest, text, 'XX', 'KEEPTTL', 'GET')) -- defect: W8-newest
  if last and last < ticket and last >= ticket - ticket % 60000000 then
    return ticket, text
  end
  -- slow path: once a minute, to set the expiry; or the clock has stepped back
  if last and last > ticket + 86400000000 then
    last = nil -- not one of ours; tickets would grow beyond what a reply can hold
  end
  if last and last >= ticket or not last and redis.call('ZCOUNT', waiters, text, 'inf') > 1 then -- defect: W8-highest
    local own_last = redis.call('ZRANGE', waiters, '-1', '-1', 'WITHSCORES')[2]
    ticket = math.max(last or 0, tonumber(own_last)) + 1
    text = string.format('%.0f', ticket)
    redis.call('ZADD', waiters, text, entry)
  end
  redis.pcall('SET', highest, text, 'EX', '86400', 'GET') -- with GET, a key of another type stays as it is
  return ticket, text
end

-- Adds a newcomer to the queue. Returns its ticket, and for how many ms the current lease lasts. A waiter that comes
-- back keeps its old ticket, unless a clock that stepped back has made that one worse than a new one (W8).
-- *others* is true if there are a queue and a line of this session, which then has its place if it is in the queue.
local function enqueue(entry, old_ticket, others)
  local newcomer = old_ticket == '0'
  local placed = others and newcomer and redis.call('ZRANK', queue, session)
  local ticket, text = stand_last(entry)
  if not ticket then -- it is there already, or cannot be added
    text = redis.call('ZSCORE', waiters, entry) or redis.call('ZADD', waiters, 'NX', 0, entry) -- the error
    return tonumber(text), keep_queue()
  end
  -- equivalent: comparison, where equal, either gives the same
  if not newcomer and tonumber(old_ticket) < ticket then -- defect: W8-old-ticket
    ticket, text = tonumber(old_ticket), old_ticket
    redis.call('ZADD', waiters, text, entry)
  end
  return ticket, keep_queue(placed)
end

-- Adds a newcomer behind others of its session, whose re-checks keep the line alive. Returns its ticket; or nil if the
-- session is not in the queue, or the entry is there already: then `enqueue` is for it.
local function enqueue_behind_own(entry)
  if redis.call('ZRANK', queue, session) then
    return (stand_last(entry))
  end
end

-- Answers each waiter that the session believes to have: with its ticket; or with minus the fencing token of its grant
-- (the message was lost); or with 0 if it must ask again, because it is not known here or its grant has a mark.
-- *fence_of* returns the fencing token and the mark for a token. *standing*, if given, returns the answer for a waiter
-- in line, or nil if it is to leave. W8: it never creates a waiter. W2: also returns 1 if the session was passed over.
local function recheck(fence_of, standing)
  local in_queue = redis.call('ZRANK', queue, session)
  local answers, waiting = {}, false
  for at, waiter in ipairs(entries) do
    local entry = waiter .. PADDING
    local token, ttl_ms, permits = string.match(entry, '^(%S+) (%d+) (%d+)')
    local ticket = redis.call('ZSCORE', waiters, entry)
    local number, mark = fence_of(token)
    local answer = 0
    if number and mark ~= '' then
      -- slow path
      leave(entry)
    elseif number then
      -- slow path: the message about this grant was lost
      extend(token, ttl_ms) -- defect: W11-full
      leave(entry)
      answer = -number -- defect: W10-recheck
    elseif ticket then
      answer = tonumber(ticket)
      if standing then
        answer = standing(answer, tonumber(permits), not waiting)
      end
      if answer then
        waiting = true
      else
        -- slow path
        leave(entry)
      end
    end
    answers[at] = answer or 0 -- defect: W8-recheck
  end
  if waiting then
    keep_queue() -- defect: W2-put-back
  end
  return answers, waiting and not in_queue and 1 or 0
end

-- W21: waiters are counted in parts, because each session costs a command.
local MOST_COUNTED = 500 -- sessions -- defect: W21-sessions

-- Returns the number of waiters in the sessions from the place *first* on, and the place to continue from, or 0 after
-- the last.
local function count_waiting()
  local from = tonumber(first)
  local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
  local sessions = redis.call('ZRANGE', queue, from, from + MOST_COUNTED - 1)
  local waiting = 0
  for _, other in ipairs(sessions) do
    waiting = waiting + redis.call('ZCARD', lines .. other)
  end
  return waiting, #sessions == MOST_COUNTED and from + MOST_COUNTED or 0
end

-- W26: returns the number N of the ticket `<N`: the request waits only if fewer than N others wait. Returns nil for a
-- token that is in line already, because its first reply was lost: it is never refused.
local function room_for(entry)
  if redis.call('EXISTS', waiters) == 1 then
    if redis.call('ZSCORE', waiters, entry) then -- defect: W26-in-line
      return
    end
    if not redis.call('ZRANK', queue, session) then
      keep_queue() -- W2: waiters of this session that were passed over return, and count
    end
  end
  return tonumber(string.sub(ticket, 2))
end

-- W26: returns how many wait, if that is too many for a request that allows *most* of them; else nil. It counts to
-- *most*. Each live session in the queue has a waiter, so it looks at as many sessions as waiters are missing. If there
-- are that many, all alive, one EXISTS tells it, in a quarter of the time. A queue of more than `MOST_COUNTED` sessions
-- is full. W2: dead sessions are taken out, or they would fill the queue while nothing is handed over.
local function crowd(most)
  local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
  local waiting, alive, sessions_read = 0, 0, 0
  while waiting < most and alive < MOST_COUNTED and sessions_read < 2 * MOST_COUNTED do
    local missing = most - waiting
    local found = redis.call('ZRANGE', queue, alive, math.min(alive + missing, MOST_COUNTED) - 1)
    for at, other in ipairs(found) do
      found[at] = lines .. other
    end
    if #found == missing and redis.call('EXISTS', spread(found, 1, missing)) == missing then -- equivalent: for speed
      return most
    end
    for _, line in ipairs(found) do
      local number = redis.call('ZCARD', line) -- defect: W26-waiters
      if number == 0 then
        redis.call('ZREM', queue, string.sub(line, #lines + 1)) -- defect: W26-dead
      else
        waiting, alive = waiting + number, alive + 1
      end
      if waiting >= most then
        return waiting
      end
    end
    if #found == 0 then
      return
    end
    sessions_read = sessions_read + #found
  end
  if most == 0 or redis.call('ZCARD', queue) > alive then -- defect: W26-sessions
    return waiting
  end
end
