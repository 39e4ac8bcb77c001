-- W16: revokes the leases whose fencing tokens are from *first* to *last*.
-- Needs the names: first, last; reason for `keep_reason`; for `revoke_some` holders, meta, place, tombstone_ms; and
-- `numbers`, `leases` and `books`.

-- W9: a first write that is allowed at the memory limit, and then all are. *left* is the TTL of the key in ms.
local function keep_as_it_is(key, left)
  if left >= 0 then
    redis.call('PEXPIRE', key, math.max(left, 1) .. '')
  end
end

-- Keeps the *reason* for the holder, in a key beside the tombstones: older versions of these scripts read the marks and
-- tombstones as they are. W9: it is written last, and may fail. It lives while the lease can, and a minute at least.
local function keep_reason(key, token, left)
  if reason ~= '' then
    redis.pcall('SET', key .. ':r:' .. token, 'R' .. reason, 'PX', math.max(left, 60000) .. '')
  end
end

-- Returns the reason in that form, for the holder of a lease that was revoked; or *code* if there is none.
local function reason_of(key, token, code)
  return redis.call('GET', key .. ':r:' .. token) or code
end

-- True if the lease with this fencing token is to be revoked.
local function is_meant(number)
  return number - first >= 0 and number - last <= 0
end

-- Marks the leases that are meant, and what has grown from them; or ends them, or only looks, as *tombstone_ms* says.
-- Unless it only looks, it ends leases that are cooling or offered, because no body relies on them; their ms are 0.
-- It takes some holders, in the order in which their leases end, so a lease that is renewed meanwhile comes later.
-- Returns the first part of the reply.
local function revoke_some()
  local from, next_place = place == '' and '(' .. now_ms or place, ''
  local some = redis.call('ZRANGEBYSCORE', holders, from, '+inf', 'LIMIT', 0, MOST)
  if #some == MOST then -- leases that end at the same time stay together
    local ends = redis.call('ZSCORE', holders, some[MOST])
    some, next_place = redis.call('ZRANGEBYSCORE', holders, from, ends), '(' .. ends
  end
  local meant, marked, released = {}, {}, {}
  local answer = { 0, next_place }
  for at, token in ipairs(some) do
    local terms = redis.call('HMGET', meta, token)[1]
    local number, mark = parts_of(terms)
    local upgradeable = string.match(token, '^(.-)%+')
    local grown_from = upgradeable and redis.call('HMGET', meta, upgradeable)[1]
    -- W25: a pause is no holder.
    local held = token ~= PAUSE -- defect: W25-revoke
    if held and (is_meant(number) or (grown_from and is_meant((parts_of(grown_from))))) then
      local unused = mark == 'C' or mark == 'O' -- defect: W27-revoked-some
      local list = unused and tombstone_ms == '0' and released or meant
      list[#list + 1] = token
      local left = unused and 0 or math.max(redis.call('ZSCORE', holders, token) - now_ms, 1)
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] =
        number, left, tonumber(string.match(terms or '', '^%d+') or 0)
      -- If the hash was deleted there is no place for a mark.
      answer[1] = (not terms or answer[1] == -1) and -1 or math.max(answer[1], left)
      if terms and mark == '' then
        marked[#marked + 1], marked[#marked + 2] = token, terms .. ' R'
      end
    end
  end
  if tombstone_ms == '-1' then
    return answer
  end
  for _, token in ipairs(released) do
    drop(token)
  end
  if tombstone_ms ~= '0' then
    answer[1] = 0
    for _, token in ipairs(meant) do
      drop(token) -- W9: this write frees memory, and then all are allowed
      redis.pcall('SET', holders .. ':t:' .. token, 'R', 'PX', math.max(longest, tombstone_ms) .. '')
      keep_reason(holders, token, longest)
    end
  elseif meant[1] then
    keep_as_it_is(holders, redis.call('PTTL', holders))
    for at = 1, #marked, MOST do -- an even number: token and terms
      redis.call('HSET', meta, spread(marked, at, math.min(at + MOST - 1, #marked)))
    end
    for at = 1, #marked, 2 do
      keep_reason(holders, marked[at], longest)
    end
  end
  return answer
end
