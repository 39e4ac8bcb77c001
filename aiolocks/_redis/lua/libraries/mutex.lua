-- A mutex: one key with `token fence`, which lives as long as the lease. A third word is a mark: R, C or O, as in
-- `leases` (W16, W17, W18).
-- An older version of these scripts does not know the third word. It tells a holder that renews that it holds nothing,
-- so the holder stops. It lets the guard of that lease write, because this is still the only holder. It queues the
-- token if its acquire was sent twice, releases the lease like any other, and grants nothing that excludes it.
-- Needs the names: holder, fence; queue, waiters for `hand_to_own_next`; and `numbers` and `address`.

local fenced = true -- P5, P10: the value is the token and its fencing token, so its beginning is compared

local function instant()
  return micros()
end

-- P8: a fencing token is larger than all earlier ones, even if they were forgotten, because the clock has moved on. So
-- the time is written first and compared afterwards. Returns the fencing token, as a number and as text.
local function grant(token, ttl_ms)
  local number, text = micros()
  local last = redis.call('SET', fence, text, 'EX', '86400', 'GET') or 0
  if last - number >= 0 then -- defect: P8-fence
    number = last + 1
    text = string.format('%.0f', number)
    redis.call('SET', fence, text, 'EX', '86400')
  end
  redis.call('SET', holder, token .. ' ' .. text, 'PX', ttl_ms)
  return number, text
end

-- W7, W4: hands a mutex that is being released to the next waiter of this session, which is the first in the queue.
-- Returns the reply; or nil, and writes nothing, if that is its only waiter, asks for an uptime, or the clock stepped
-- back: `hand_over` then does it, in twice the time. Here the holder is overwritten, so *last* is its fencing token.
-- W9: the first write removes a waiter, which is allowed at the memory limit, and then all writes are.
local function hand_to_own_next(last)
  local first = redis.pcall('ZRANGE', waiters, '0', '1', 'WITHSCORES')
  local entry, next_ticket = first[1], first[4]
  local number, text = micros()
  if not next_ticket or not last or last >= number then
    return
  end
  local next_token, ttl_ms, needed_s = string.match(entry, '^(%S+) (%d+) %d+ ?(%d*)')
  if needed_s ~= '' then
    return
  end
  redis.call('ZREM', waiters, entry)
  -- The expiry is set once a minute.
  if last < number - number % 60000000 or not redis.call('SET', fence, text, 'XX', 'KEEPTTL') then
    redis.call('SET', fence, text, 'EX', '86400')
  end
  redis.call('SET', holder, next_token .. ' ' .. text, 'PX', ttl_ms)
  redis.call('ZADD', queue, next_ticket, session)
  return '1 ' .. next_token .. ' ' .. text .. ' ' .. ttl_ms
end

-- Returns what a value says: the holder's token, its fencing token, and its mark or an empty text.
local function parts_of(value)
  local token, number, mark = string.match(value, '^(%S+) (%d+) ?(%u?)$')
  return token or value, tonumber(number) or 0, mark or '' -- other libraries write any text of their own
end

-- Returns the same for the current holder, or nil.
local function held_by()
  local value = redis.call('GET', holder)
  if value then
    return parts_of(value)
  end
end

-- W18: as in `leases`: a released mutex stays taken until *hold_ms* after its grant.
local function cool(value, hold_ms)
  local _, number, mark = parts_of(value)
  if mark == 'C' then
    return 0
  end
  if hold_ms and number > 0 and mark == '' then
    local left_ms = math.floor(math.min(number - micros(), 0) / 1000) + hold_ms
    if left_ms > 0 then
      redis.call('PEXPIRE', holder, left_ms .. '') -- W9: allowed at the memory limit, and then so is the next write
      redis.call('SET', holder, value .. ' C', 'PX', left_ms .. '') -- defect: W18-ends
      return left_ms
    end
  end
end

-- Returns the last fencing token: that of the holder, if one of this library holds the mutex.
local function last_fence(number)
  -- equivalent: constant, smaller than any time
  return number and number > 0 and number or tonumber(redis.call('GET', fence) or 0)
end

-- P3: as in `leases`. There is one holder at most, so its token is not compared.
local function extend(_, ttl_ms)
  if redis.call('PTTL', holder) - ttl_ms < 0 then
    redis.call('PEXPIRE', holder, ttl_ms)
  end
end

-- Returns for how many ms the lease lasts unless renewed; -1 if it has no end, -2 if there is none.
local function busy_for()
  return redis.call('PTTL', holder)
end

-- For `hand_over`: the only lease ends by itself, and a free mutex can always be granted, to one holder.
local backlog = false
local can_grant, full

local function take_back(_)
  redis.call('DEL', holder)
end
