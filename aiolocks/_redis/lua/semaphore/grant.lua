-- Grant permits to one holder, or add it to the queue, or report that too few are free.
--
-- KEYS[1]  holders    zset    token -> server time (ms) at which its lease ends
-- KEYS[2]  meta       hash    limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue      zset    session -> ticket of its first waiter
-- KEYS[4]  waiters    zset    entry of each waiter of this session -> ticket
-- KEYS[5]  tombstone  string  exists if this token was withdrawn
-- KEYS[6]  highest    string  the newest ticket of all, for a day
-- ARGV[1]  token      bytes   token of the request
-- ARGV[2]  ttl_ms     int     how long the lease lasts
-- ARGV[3]  permits    int     how many it wants
-- ARGV[4]  ticket     int     as in `lock/grant`
-- ARGV[5]  address    bytes   the session that asks; see `libraries/address`
-- ARGV[6]  limit      int     the limit of this process, or 0: the limit in force
-- ARGV[7]  declare    int     1: put that limit in force for all, unless the one in force is pinned
-- ARGV[8]  needed_s   int     minimum uptime of the server in seconds; left out: any; never with the ticket +
-- returns  as `lock/grant`, but the fencing token alone only if no limit is declared, and minus the ticket only if the
--          limit in force is that of this process; or
--          {'refused', limit in force, or 0 if there is none and this process has none, grants…};
--          each list except {'withdrawn'} ends with the limit before, if this has changed it, else 0; and that in force
local asking = token
-- uses     numbers, address, leases, semaphore, books, queue, hand_over, newcomer
-- The set counts four times.
-- defect: W10-existing-permits
local existing = redis.call('EXISTS', queue, waiters, tombstone, holders, holders, holders, holders)
if
  used + permits <= limit_in_force and (declare == '0' or limit - limit_in_force == 0)
  and (existing == 0 and members == 0 or existing == 4 and sure and not own) and young_ms < 0
then
  -- equivalent: 1 (first), for speed
  if ttl_ms - longest ~= 0 or permits - heaviest > 0 or now_us <= newest or members == 0 and counted then
    -- slow path: more than usual is to be written
    local number = grant(token, ttl_ms, permits)
    return declare == '0' and number or { 'granted', number, {}, 0, limit_in_force }
  end
  -- `grant` for the usual case, which makes an acquire and a release 7 % faster.
  local text = #time[2] == 6 and time[1] .. time[2] or string.format('%.0f', now_us)
  local ends = now_ms + ttl_ms .. ''
  local life = members == 0 and ttl_ms
  if life then
    first_end, kept_until = ends, ends
  elseif ends - kept_until > 0 then -- equivalent: constant, a millisecond
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
    redis.call('PEXPIRE', holders, life .. '')
  end
  if now_us - now_us % MINUTE_US > newest then
    redis.call('PEXPIRE', meta, idle_life(longest))
  end
  return declare == '0' and now_us or { 'granted', now_us, {}, 0, limit_in_force }
end

local entry = token .. ' ' .. ttl_ms .. ' ' .. permits .. (needed_s and ' ' .. needed_s or '') .. PADDING
if ticket == '+' then
  -- slow path: it has to wait, and a short reply is enough. W10: not if it is buried.
  local alike = declare == '0' and limit - limit_in_force == 0 and permits - limit_in_force <= 0
  local place = existing == 6 and sure and not own and alike and used >= limit_in_force -- defect: W10-brief-permits
    and redis.call('EXISTS', queue, waiters) == 2 and enqueue_behind_own(entry) -- defect: W10-line-permits
  if place then
    expect_queue()
    return -place
  end
  ticket = '0'
end

local sort = string.sub(ticket, 1, 1)
local waits = used + permits > limit_in_force and permits - limit_in_force <= 0
if sort == '<' and existing > 4 and sure and not own and declare == '0' and waits then
  -- slow path: for speed: it has to wait, so the waiters are counted first (W26)
  local waiting = too_many(entry)
  if waiting then
    return { 'full', not_before(), {}, waiting, 0, limit_in_force }
  end
end

-- slow path: too few are free, or others wait, or the count is not known for sure, or the server is too young
local young = young_ms > 0
settle()
local _, mark = parts_of(own)
if redis.call('EXISTS', tombstone) == 1 or mark ~= '' then -- defect: W10-buried
  return { 'withdrawn' }
end
local wait = sort ~= '-'
local most, waiting
if sort == '<' then
  -- slow path: W26: the others are counted once what is free was handed over (W7)
  most, ticket = room_for(entry), '0'
  wait = not most
end
local differed = 0
local none = limit == '0' and limit_in_force == 0
local changed = declare == '1' and limit - limit_in_force ~= 0 and not is_pinned()
local declared = not none and (limit_in_force == 0 or changed)
local busy_ms, place_in_line
if not declared and not none and used >= limit_in_force and not is_live(token) and can_grant(permits) == 'later' then
  -- No permit is free: only the line changes.
  if most then
    -- slow path: W26
    waiting = crowd(most)
    wait = not waiting
  end
  if wait then
    place_in_line, busy_ms = enqueue(entry, ticket, redis.call('EXISTS', queue, waiters) == 2)
    expect_queue()
  elseif redis.call('EXISTS', waiters) == 1 then
    keep_queue() -- W2: others of this session may have been passed over
    expect_queue()
  end
  if not backlog then
    if wait then
      busy_ms = math.max(busy_ms, young_ms)
      -- defect: W5-queued-permits, W1-grant
      return { 'queued', place_in_line, busy_ms, newest, subscribers(session), {}, 0, limit_in_force }
    end
    if waiting then
      return { 'full', not_before(), {}, waiting, 0, limit_in_force }
    end
    return { 'busy', not_before(), {}, 0, limit_in_force }
  end
end

-- slow path: W7: something can be free
local grants = {}
if declared then
  differed = limit_in_force
  declare_limit(limit)
  if heaviest == 0 and members > 0 then
    -- slow path: W21: holders of which nothing is known count as the new limit
    count_again()
    note()
  end
  hand_over(grants) -- defect: W7-grant
end
local number = fence_of(token)
if number then
  extend(token, ttl_ms) -- P6: asked again, because the first reply was lost or is old: the same grant
  leave(entry)
  if number == 0 then
    -- slow path
    number = describe_again(token, permits)
  end
  return { 'granted', number, grants, differed, limit_in_force } -- defect: W10-fence-permits
end
local verdict, amount = can_grant(permits)
if verdict == 'never' or none then
  leave(entry) -- it can be in line since before the limit was lowered, and no caller waits for that turn
  return { 'refused', limit_in_force, grants, differed, limit_in_force }
end
existing = redis.call('EXISTS', queue, waiters) -- equivalent: line dropped, for speed
if existing > 0 then
  if wait and not place_in_line then
    place_in_line = enqueue(entry, ticket, existing == 2)
    expect_queue()
  end
  hand_over(grants) -- defect: W7-grant
  number = fence_of(token)
  if number then
    extend(token, ttl_ms) -- perhaps by its entry in the line of a former name, and for a short time (W11, W15)
    leave(entry)
    return { 'granted', number, grants, differed, limit_in_force }
  end
  -- defect: W21-past-queue-permits
  verdict = redis.call('EXISTS', queue) == 0 and can_grant(permits) or 'later'
end
if verdict == 'yes' and not young then
  number = grant(token, ttl_ms, permits)
  return { 'granted', number, grants, differed, limit_in_force }
end
if most and not place_in_line then
  -- slow path: W26
  waiting = crowd(most)
  wait = not waiting
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
elseif waiting then
  return { 'full', not_before(), grants, waiting, differed, limit_in_force }
end
return { verdict == 'yes' and 'young' or 'busy', not_before(), grants, differed, limit_in_force }
