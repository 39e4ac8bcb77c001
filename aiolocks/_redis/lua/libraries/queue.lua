-- The FIFO queue that all primitives share. `queue` orders sessions by the ticket of their first waiter;
-- `…:q:<session>` orders one session's waiters, as entries `token ttl_ms permits …`, and lives only as long as the
-- session keeps asking. So a thousand waiters of a dead process are skipped in one step.
-- An entry may have a fourth word: the uptime in seconds that the server must have for it. Older versions of the scripts
-- know none, and hand over to it whatever the uptime; that ends with the last process that has them.
-- Needs the names: queue, waiters, session, channels, life_ms; highest for `enqueue`; entries for `recheck`; first for
-- `count_waiting`; of the primitive busy_for, extend, instant.

-- Ends each entry, which so has more than 64 bytes: then Redis keeps the line in order as a skip list, while it would
-- read through a hundred shorter entries, packed one behind the other, for every one that comes and goes.
local PADDING = ' ..............................'

-- The session has shown that it lives. Its own line is *set* to its lifetime, never extended beyond: a lease handed
-- to a session that has stopped must find that session dead when it lapses, or each of its waiters costs one lease.
-- The queue outlives the lease in the way, by a little more than needed, so as not to be extended each time.
-- *placed*: the session stands at the place of its first waiter. Returns how long the lease in the way lasts, in ms.
local function keep_queue(placed)
  -- defect: W3-line
  redis.call('PEXPIRE', waiters, life_ms) -- first a write that is allowed at the memory limit: then so are all others
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
    redis.call('PEXPIRE', queue, needed + life_ms)
  end
  return busy_ms
end

-- The channel on which a session is told, and the commands for it. An open brace at the end of *channels* says that they
-- are those of a Cluster's shards: what stands in the braces of the name's keys puts each into the slot of its name, as a
-- script may use no other. `channel_of` in keys.py says the same to the client.
local function channel_of(other)
  if string.sub(channels, -1) == '{' then
    return channels .. string.match(queue, '{(.-)}') .. '}:' .. other, 'SPUBLISH', 'SHARDNUMSUB'
  end
  return channels .. other, 'PUBLISH', 'NUMSUB'
end

-- PUBLISH's count would say 0 for subscribers on another node of a Cluster, and count monitors with patterns.
local function subscribers(other)
  local channel, _, count = channel_of(other)
  local reply = redis.pcall('PUBSUB', count, channel) -- defect: W9-count
  return reply.err and 0 or tonumber(reply[2]) -- defect: W1-listens
end

-- Takes a waiter out of this session's line.
local function leave(entry)
  if redis.call('ZREM', waiters, entry) == 1 then
    keep_queue()
  end
end

-- Puts an entry in line behind all others, also after the clock stepped back (W8). Returns its ticket, as a number and
-- as text; or nothing, if the entry is there already or cannot be added.
-- The queue shows only the first ticket of each session. So a separate key keeps the newest ticket of all for a day,
-- and the order fails only after a step by more than a day. An older version of these scripts does not write that key,
-- so the tickets in the queue count as well; they count alone if the key is missing.
-- The line is written first: a key of another type, or the memory limit, is an error before anything is changed (W9).
local function stand_last(entry)
  local ticket, text = instant()
  -- defect: W8-queue
  if redis.call('ZCOUNT', queue, text, 'inf') > 0 then -- the clock has stepped back, or two came within a microsecond
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
  -- slow path: once a minute, when its expiry is set; or the clock has stepped back
  if last and last > ticket + 86400000000 then
    last = nil -- more than a day ahead is none of ours; with it, tickets would grow beyond what a reply can say
  end
  if last and last >= ticket or not last and redis.call('ZCOUNT', waiters, text, 'inf') > 1 then -- defect: W8-highest
    local own_last = redis.call('ZRANGE', waiters, '-1', '-1', 'WITHSCORES')[2]
    ticket = math.max(last or 0, tonumber(own_last)) + 1
    text = string.format('%.0f', ticket)
    redis.call('ZADD', waiters, text, entry)
  end
  redis.pcall('SET', highest, text, 'EX', '86400', 'GET') -- GET: so that a key of another type stays as it is
  return ticket, text
end

-- Puts a newcomer in the queue; returns its ticket, and how long the lease in the way lasts. One that comes back keeps
-- its old ticket, unless a clock that stepped back has made that one worse than a new one.
-- *others*: there is a queue, and a line of this session; so the session is in its place, if it is in the queue.
local function enqueue(entry, old_ticket, others)
  local newcomer = old_ticket == '0'
  local placed = others and newcomer and redis.call('ZRANK', queue, session)
  local ticket, text = stand_last(entry)
  if not ticket then -- it is there already, or nothing can be added
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

-- Puts a newcomer behind others of its session, whose line there is: their re-checks keep it alive, and tell what there
-- is to be told. Returns its ticket; or nothing, where more has to be done or said.
local function enqueue_behind_own(entry)
  if redis.call('ZRANK', queue, session) then
    return (stand_last(entry))
  end
end

-- Answers each waiter that the session believes to have: with its ticket, with minus the fencing token of the grant
-- that *fence_of* finds for its token, or with 0, if it must ask anew: it is not known here, or its grant has a mark,
-- which *fence_of* returns too. A re-check never puts a waiter in line. *standing*, if there is one, gives the answer for a waiter in line, or nothing if it is to leave.
-- Returns the answers, and 1 if the session had been passed over.
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
      -- slow path: the notice of this grant was lost
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

-- Returns how many wait in the sessions from the place *first* on; and the place to go on from, or 0 after the last.
-- They are counted in parts: each session costs a command, and a script keeps all others from the server.
local MOST_COUNTED = 500 -- sessions -- defect: W21-sessions
local function count_waiting()
  local from = tonumber(first)
  local lines = string.sub(queue, 1, -string.len('queue') - 1) .. 'q:'
  local sessions = redis.call('ZRANGE', queue, from, from + MOST_COUNTED - 1)
  local waiting = 0
  for _, session in ipairs(sessions) do
    waiting = waiting + redis.call('ZCARD', lines .. session)
  end
  return waiting, #sessions == MOST_COUNTED and from + MOST_COUNTED or 0
end
