-- Grant permits to one holder, or put it in the queue, or say that too few are free.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of this session's waiters -> ticket
-- KEYS[5]  tombstone  string  there when this token was withdrawn
-- KEYS[6]  highest    string  the newest ticket of all, for a day
-- ARGV[1]  token      bytes   who asks
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  permits    int     how many it wants
-- ARGV[4]  ticket     int     the place this token had before, or 0; its complement (-1, …): only ask;
--                             or +, when it asks for the first time and a short answer will do
-- ARGV[5]  session    bytes   whom to tell
-- ARGV[6]  channels   bytes   start of every session's channel
-- ARGV[7]  life_ms    int     how long the session is taken for alive without a re-check
-- ARGV[8]  limit      int     this process's limit, or 0: that in force
-- ARGV[9]  declare    int     1: put that limit in force for everyone, unless the one in force is pinned
-- ARGV[10] needed_s   int     the uptime in seconds that the server must have; left out: any will do, and so it is if
--                             the ticket is +
-- returns  fencing token, when nothing was in the way and no limit is declared; or minus the ticket, the short answer
--          that it waits, and that the limit in force is this process's; else
--          {'granted', fencing token, grants for this session…: of each its token, fencing token, ttl_ms, limits}
--          {'queued', ticket, ms until a lease can end, last fencing token, subscribers, grants…, limits}
--          {'busy', ms until a lease can end, grants…, limits}
--          {'young', ms until the server has that uptime, grants…, limits}, when that alone is in the way
--          {'refused', limit in force, or 0 if there is none and this process has none, grants…, limits};
--          {'withdrawn'}, when this token is granted nothing any more: it was undone, or its lease is revoked;
--          limits are two fields: the limit before, if this has changed it, else 0; and the limit in force
local asking = token
-- uses     numbers, leases, semaphore, queue, hand_over
local missing_s = 0 -- seconds of uptime -- defect: P9-uptime
if needed_s then
  -- slow path
  local up = seconds_up()
  if not up then
    return uptime_unknown() -- before anything is written
  end
  missing_s = needed_s - up
end
-- defect: W10-existing-permits
local existing = redis.call('EXISTS', queue, waiters, tombstone, holders, holders, holders, holders) -- each time counts
if
  used + permits <= limit_in_force and (declare == '0' or tonumber(limit) == limit_in_force)
  and (existing == 0 and members == 0 or existing == 4 and sure and not own) and missing_s <= 0
then
  if ttl_ms - longest ~= 0 or permits - heaviest > 0 or now_us <= newest or members == 0 and counted then
    -- slow path: more is to be written down than usual
    local number = grant(token, ttl_ms, permits)
    return declare == '0' and number or { 'granted', number, {}, 0, limit_in_force }
  end
  -- The same as `grant` does, for the usual case, in four fifths of the time.
  local text = #time[2] == 6 and time[1] .. time[2] or string.format('%.0f', now_us)
  local ends = now_ms + ttl_ms .. ''
  local life = members == 0 and ttl_ms
  if life then
    first_end, kept_until = ends, ends
  elseif ends - kept_until > 0 then
    life = ttl_ms + math.floor(ttl_ms / 8)
    kept_until = now_ms + life
  end
  redis.call('ZADD', holders, 'GT', ends, token)
  redis.call(
    'HSET', meta, 'fence', text, 'used',
    used + permits .. ' ' .. members + 1 .. ' ' .. text .. ' ' .. first_end .. ' ' .. kept_until .. SPACES,
    token, permits .. ' ' .. text
  )
  if life then
    redis.call('PEXPIRE', holders, life)
  end
  if now_us - now_us % MINUTE_US > newest then
    redis.call('PEXPIRE', meta, idle_life(longest))
  end
  return declare == '0' and now_us or { 'granted', now_us, {}, 0, limit_in_force }
end

local entry = token .. ' ' .. ttl_ms .. ' ' .. permits .. PADDING
if ticket == '+' then
  -- slow path: it has to wait, and a short answer may do; not where it is buried
  local alike = declare == '0' and tonumber(limit) == limit_in_force and permits - limit_in_force <= 0
  local place = existing == 6 and sure and not own and alike and used >= limit_in_force -- defect: W10-brief-permits
    and redis.call('EXISTS', queue, waiters) == 2 and enqueue_behind_own(entry) -- defect: W10-line-permits
  if place then
    expect_queue()
    return -place
  end
  ticket = '0'
end

-- slow path: too few are free, or others wait, or the number is not known for sure, or the server is too young
local young = missing_s > 0
if needed_s then
  entry = token .. ' ' .. ttl_ms .. ' ' .. permits .. ' ' .. needed_s .. PADDING
  young_ms = young and 1000 * missing_s or young_ms
end
settle()
if redis.call('EXISTS', tombstone) == 1 then -- defect: W10-buried
  return { 'withdrawn' } -- this request was overtaken by its own undo
end
local _, mark = parts_of(own)
if mark ~= '' then
  return { 'withdrawn' } -- else it would wait in line behind itself, or be granted anew
end
local wait = string.sub(ticket, 1, 1) ~= '-'
local differed = 0
local none = limit == '0' and limit_in_force == 0
local declared = not none and (limit_in_force == 0 or declare == '1' and limit_in_force ~= tonumber(limit) and not is_pinned())
local busy_ms, place_in_line
if not declared and not none and used >= limit_in_force and not is_live(token) and can_grant(tonumber(permits)) == 'later' then
  -- No permit is free: the line is all that changes.
  if wait then
    place_in_line, busy_ms = enqueue(entry, ticket, redis.call('EXISTS', queue, waiters) == 2)
    expect_queue()
  elseif redis.call('EXISTS', waiters) == 1 then
    keep_queue() -- others of this session may have been passed over
    expect_queue()
  end
  if not backlog then
    if wait then
      -- defect: W5-queued-permits, W1-grant
      return { 'queued', place_in_line, math.max(busy_ms, young_ms), newest, subscribers(session), {}, 0, limit_in_force }
    end
    return { 'busy', not_before(), {}, 0, limit_in_force }
  end
end

-- slow path: something may be free
local grants = {}
if declared then
  differed = limit_in_force
  declare_limit(limit)
  hand_over(grants) -- defect: W7-grant
end
local number = fence_of(token)
if number then
  extend(token, ttl_ms) -- asked again, because the first answer was lost or is old: the same grant
  leave(entry)
  if number == 0 then -- the hash was deleted, and with it the token that it was granted with
    number = math.max(newest + 1, now_us)
    newest, newest_text = number, digits(number)
    redis.call('HSET', meta, 'fence', newest_text, token, permits .. ' ' .. newest_text)
    if heaviest == 0 then -- of others beside it nothing is known
      heaviest = members == 1 and tonumber(permits) or math.max(limit_in_force, tonumber(permits))
    end
    count_anew()
    note()
  end
  return { 'granted', number, grants, differed, limit_in_force } -- defect: W10-fence-permits
end
local verdict, amount = can_grant(tonumber(permits))
if verdict == 'never' or none then
  leave(entry) -- it may stand in line since before the limit was lowered, and no caller would wait for that turn
  return { 'refused', limit_in_force, grants, differed, limit_in_force }
end
existing = redis.call('EXISTS', queue, waiters)
if existing > 0 then
  if wait and not place_in_line then
    place_in_line = enqueue(entry, ticket, existing == 2)
    expect_queue()
  end
  hand_over(grants) -- defect: W7-grant
  number = fence_of(token)
  if number then
    return { 'granted', number, grants, differed, limit_in_force }
  end
  -- defect: W21-past-queue-permits
  verdict = redis.call('EXISTS', queue) == 0 and can_grant(tonumber(permits)) or 'later'
end
if verdict == 'yes' and not young then
  number = grant(token, ttl_ms, permits)
  return { 'granted', number, grants, differed, limit_in_force }
end
if wait and not place_in_line then
  place_in_line = enqueue(entry, ticket)
  expect_queue()
end
if backlog then
  hand_over(grants) -- which says that there is more to come -- defect: W7-grant
end
if wait then
  return { 'queued', place_in_line, not_before(), newest, subscribers(session), grants, differed, limit_in_force }
end
return { verdict == 'yes' and 'young' or 'busy', not_before(), grants, differed, limit_in_force }
