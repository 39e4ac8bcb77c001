-- A name held in modes, some of which go together: how the hash is read, and which modes fit. A share is a mode.
-- The hash has the last fencing token and the largest TTL ever granted; `line` if there may be a queue; `mode fence
-- [mark]` by the token of each holder; and `held`: the last fencing token when the holders of each mode were counted,
-- when the first lease ends at the earliest, until when the set lives at least (ms), and `mode:holders` for each held
-- mode. `asking` is the token of the request, or empty.
-- Needs the names: holders, meta, asking; and `leases`.

local COUNTS = 'held' -- the field with the counts

-- The modes that each mode can be held together with, by number: 1 IS and 2 IX announce 3 S (shared) and 6 X
-- (exclusive) further down a path; 4 SIX is both S and IX; 5 U reads together with readers until it is upgraded. The
-- upgrade is 7, exclusive except for the U it grew from; its token begins with the token of that U.
local BESIDE = { '12345', '12', '135', '1', '13', '', '5' } -- defect: modes-beside
local EXCLUSIVE, UPGRADE = 6, 7

local known = redis.call('HMGET', meta, 'fence', 'ttl', 'held', 'line', asking)
newest, longest, heaviest = (known[1] or 0) + 0, (known[2] or 0) + 0, 7 -- the largest there is
newest_text, described = known[1], true
local noted, in_line, own = known[3], known[4], known[5]

-- W21: as in `semaphore`. An older version of these scripts writes the counts in another form, which is not read.
local held = { 0, 0, 0, 0, 0, 0, 0 }
local witness, pairs_held
witness, first_end, kept_until, pairs_held = string.match(noted or '', '^(%d+) (%d+) (%d+)([ :%d]*) ')
local counted = witness and witness == (known[1] or '0')
first_end, kept_until = first_end or 0, kept_until or 0
for mode, number in string.gmatch(pairs_held or '', '(%d):(%d+)') do
  held[mode + 0] = number + 0
  members = members + number
end

-- Makes the field longer than 64 bytes, so that Redis keeps the hash as a table, and not as packed fields.
local DOTS = ' ..............................'

local function counts()
  local text = (newest_text or '0') .. ' ' .. first_end .. ' ' .. kept_until
  for mode = 1, 7 do
    if held[mode] > 0 then
      text = text .. ' ' .. mode .. ':' .. held[mode]
    end
  end
  return text .. DOTS
end

-- Only a semaphore has more fields in its hash, and can be paused.
local function other_fields() end

local function forget_pause() end

local function clear()
  held = { 0, 0, 0, 0, 0, 0, 0 }
end

local function count(mode, number)
  held[mode + 0] = held[mode + 0] + number
end

-- W21: a holder of which nothing is known, because its field was deleted, counts as exclusive.
local function unknown_share()
  return EXCLUSIVE
end

-- Returns the ms until the first lease can end, or -2 if there is none.
local function busy_for()
  local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
  return first and math.max(first - now_ms, 0) or -2 -- equivalent: 1, then the answer is more
end

-- True if this mode can be held together with all that are held.
local function fits(mode)
  local beside = BESIDE[mode]
  for other = 1, 7 do
    if held[other] > 0 and not string.find(beside, other, 1, true) then
      return false
    end
  end
  return true
end

local full -- each waiter has to be looked at, because the next can be an upgrade to be refused

-- Says whether a mode can be had together with all that are held: 'yes'; or 'later', and 0 if no other mode can be had
-- either; or 'never', and why: 0 if there is no U to upgrade (W12), -1 if it was revoked (W16).
local function judge(mode, token)
  if mode == UPGRADE then
    -- slow path
    local upgradeable = string.match(token, '^(.-)%+') or ''
    local terms = is_live(upgradeable) and redis.call('HMGET', meta, upgradeable)[1] or ''
    local _, mark = parts_of(terms)
    if mark ~= '' or string.byte(terms) ~= 53 then -- 53 is 5
      return 'never', mark == 'R' and -1 or 0
    end
  end
  if fits(mode) then
    return 'yes'
  end
  return 'later', held[EXCLUSIVE] + held[UPGRADE] == 0 and 1 or 0 -- equivalent: 2, any number but 0
end
