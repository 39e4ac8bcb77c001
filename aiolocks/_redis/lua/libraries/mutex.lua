-- A mutex: one key with `token fence` in it for as long as the lease lasts; a third word is a mark:
--   R  revoked: it goes on until its holder releases it or it ends, and nothing extends it
--   C  cooling: its holder has released it, and it is no one's lease, but keeps the name taken until it ends
--   O  offered: its holder has handed it off under a secret, which stands in place of its token until it is adopted
-- An older version of these scripts knows no third word. It tells a holder who renews that it holds nothing, so that it
-- stops; lets its guard write, as it is the only holder still; has its token wait in line, if an acquire of it was sent
-- twice; releases it as any other, and grants nothing beside it.
-- Needs the names: holder, fence; queue, waiters, session for `hand_on`; and `numbers`.

local function instant()
  return micros()
end

-- A fencing token outgrows all earlier ones even when they were forgotten, because the clock has moved on. It nearly
-- always has, so that the time is written first and looked at then; 86400 s are a day. Returns the number, and the
-- same as text.
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

-- Gives a mutex that is being released to the next waiter of this session, which is the first in the queue, and returns
-- what to answer; or nothing, where there is no waiter behind that one, or there is more to do or to ask. `hand_over` would do the
-- same in twice the time: here the holder is overwritten, and the fencing token that it had, *last*, is the last of all.
-- The first write takes a waiter out: it is allowed at the memory limit, and then so are all others.
local function hand_on(last)
  local first = redis.pcall('ZRANGE', waiters, '0', '1', 'WITHSCORES')
  local entry, next_entry, next_ticket = first[1], first[3], first[4]
  local number, text = micros()
  if not next_entry or not last or last >= number then
    return
  end
  local next_token, ttl_ms, needed_s = string.match(entry, '^(%S+) (%d+) %d+ ?(%d*)')
  if needed_s ~= '' then
    return
  end
  redis.call('ZREM', waiters, entry)
  -- Its expiry is set once a minute.
  if last < number - number % 60000000 or not redis.call('SET', fence, text, 'XX', 'KEEPTTL') then
    redis.call('SET', fence, text, 'EX', '86400')
  end
  redis.call('SET', holder, next_token .. ' ' .. text, 'PX', ttl_ms)
  redis.call('ZADD', queue, next_ticket, session)
  return '1 ' .. next_token .. ' ' .. text .. ' ' .. ttl_ms
end

-- What a value says: the holder's token, its fencing token, and its mark, or an empty text.
local function parts_of(value)
  local token, number, mark = string.match(value, '^(%S+) (%d+) ?(%u?)$')
  return token or value, tonumber(number) or 0, mark or '' -- other libraries put any text of their own there
end

-- Returns the same of the current holder, or nothing.
local function held_by()
  local value = redis.call('GET', holder)
  if value then
    return parts_of(value)
  end
end

-- Keeps a mutex whose holder lets go of it taken until *min_hold_ms* after its grant, and returns for how long that is, in
-- ms; 0 if that was done before, and nothing changes; or nothing, if it is to be released as any other. A clock that was
-- stepped makes that time no longer than *min_hold_ms* from now on.
local function cool(value, min_hold_ms)
  local _, number, mark = parts_of(value)
  if mark == 'C' then
    return 0
  end
  if min_hold_ms and number > 0 and mark == '' then
    local left_ms = math.floor(math.min(number - micros(), 0) / 1000) + min_hold_ms
    if left_ms > 0 then
      redis.call('PEXPIRE', holder, left_ms) -- first a write that is allowed at the memory limit: then so is the next
      redis.call('SET', holder, value .. ' C', 'PX', left_ms)
      return left_ms
    end
  end
end

-- The last fencing token; it stands beside the holder's, if the holder is one of this library's.
local function last_fence(number)
  -- equivalent: constant, smaller than any time
  return number and number > 0 and number or tonumber(redis.call('GET', fence) or 0)
end

-- No script ever shortens a lease: the holder may count on what it was told before. There is one holder at most, so
-- that its token is not looked at.
local function extend(_, ttl_ms)
  if redis.call('PTTL', holder) - ttl_ms < 0 then
    redis.call('PEXPIRE', holder, ttl_ms)
  end
end

-- How long the lease in the way lasts unless renewed, in ms; -1 when it has no end, -2 when there is none.
local function busy_for()
  return redis.call('PTTL', holder)
end

-- For handing over: the only lease there is ends by itself; and there is nothing to ask, as one holder can always be
-- granted a free mutex, and no other beside it.
local backlog = false
local can_grant, full

local function take_back(_)
  redis.call('DEL', holder)
end
