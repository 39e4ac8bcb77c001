-- The books of a semaphore and of modes: the granted shares are counted, and written next to the leases, so that a
-- script need not ask about each holder. The primitive says what a share counts, and what fits.
-- Needs the names: holders, meta, asking; of the primitive COUNTS, noted, counted, in_line, own, counts, other_fields,
-- clear, count, unknown_share, forget_pause, judge; and `numbers` and `leases`.

-- True if the counts can be relied on, and no lease has ended: each holder in the set is live.
local sure = counted and first_end - now_ms > 0 and first_end - now_ms <= longest

-- Grants a share to a token. Returns the fencing token, as a number and as text.
-- The keys outlive the leases, and never lose time. The set lives a little longer than needed, and while no session
-- waits the hash is extended once a minute, so that not each grant extends them.
local function grant(token, ttl_ms, share)
  local number = now_us
  if number <= newest then -- P8
    number = newest + 1
  end
  local ends = now_ms + ttl_ms .. '' -- Redis would take longer to make a text of a number
  local added = redis.call('ZADD', holders, 'GT', ends, token)
  local life
  members = members + added
  count(share, added)
  if members == 1 then
    life, first_end, kept_until = ttl_ms, ends, ends
  else
    if ends - first_end < 0 then
      first_end = ends
    end
    if ends - kept_until > 0 then -- equivalent: constant, a millisecond
      life = ttl_ms + math.floor(ttl_ms / 8) -- equivalent: constant, only longer than needed
      kept_until = now_ms + life
    end
  end
  if life and life - longest < 0 then
    life = math.max(life, redis.call('PTTL', holders))
    kept_until = now_ms + life -- equivalent: line dropped, for speed
  end
  -- equivalent: constant, a millisecond of twice the life
  local stale = settled or ttl_ms - longest > 0 or number - number % MINUTE_US > newest
  newest, unwritten = number, false
  newest_text = number == now_us and #time[2] == 6 and time[1] .. time[2] or digits(number)
  if share - heaviest > 0 or ttl_ms - longest > 0 then
    -- slow path
    heaviest, longest = math.max(heaviest, share), math.max(longest, ttl_ms)
    redis.call('HSET', meta, 'ttl', longest, other_fields())
  end
  redis.call('HSET', meta, 'fence', newest_text, COUNTS, counts(), token, share .. ' ' .. newest_text) -- W21
  if life then
    redis.call('PEXPIRE', holders, life .. '')
  end
  if stale then
    redis.call('PEXPIRE', meta, idle_life(longest))
  end
  return newest, newest_text
end

-- Writes the counts. If that is refused, as at the memory limit, the next script counts again.
local function note()
  unwritten = false -- equivalent: line dropped, only written again
  if described then
    redis.pcall('HSET', meta, 'ttl', longest, COUNTS, counts())
    if newest == 0 then
      redis.call('PEXPIRE', meta, idle_life(longest)) -- the hash was deleted
    end
  end
end

-- Returns how many of these holders have each share; under 0, how many have no terms in the hash.
local function by_share(tokens)
  local found = {}
  for from = 1, #tokens, MOST do
    for _, terms in ipairs(redis.call('HMGET', meta, spread(tokens, from, math.min(from + MOST - 1, #tokens)))) do
      -- A single digit is read without making a text of it, which is most of what it costs to count thousands.
      local one, two = string.byte(terms or '', 1, 2) -- equivalent: 3, the third is not read
      -- equivalent: 33, both read the same number
      local share = two == 32 and one - 48 or tonumber(string.match(terms or '', '^%d+') or 0)
      found[share] = (found[share] or 0) + 1
    end
  end
  return found
end

-- Counts all holders: at once, if no share was ever larger than 1, or nothing was granted since the hash was deleted.
local function count_again()
  local left_ms = math.max(redis.call('PTTL', holders), 0) -- equivalent: constant, a millisecond
  members, kept_until = redis.call('ZCARD', holders), now_ms + left_ms
  longest = longest > 0 and longest or left_ms -- equivalent: constant, no lease is so short
  clear()
  if heaviest == 1 or newest == 0 then -- equivalent: 1 (first), the same number, counted one by one
    count(unknown_share(), members)
    return
  end
  for share, number in pairs(by_share(redis.call('ZRANGE', holders, 0, -1))) do
    count(share > 0 and share or unknown_share(), number)
  end
end

-- W25: puts on record what is left after a pause. If the hash was deleted during it, all are counted again.
local function end_pause()
  forget_pause()
  if heaviest == 0 and members > 0 then
    count_again() -- defect: W25-unknown
  end
end

-- Removes leases that have ended, and what they count.
local function remove_ended()
  local ended = redis.call('ZRANGEBYSCORE', holders, '-inf', now_ms, 'LIMIT', 0, MOST)
  if ended[1] then
    local shares = by_share(ended)
    redis.call('ZREM', holders, spread(ended, 1, #ended))
    redis.call('HDEL', meta, spread(ended, 1, #ended))
    members = members - #ended
    if shares[0] then
      -- slow path: what these were counted as is not known
      count_again()
    else
      for share, number in pairs(shares) do
        count(share, -number) -- defect: W21-weight
      end
    end
    for at = 1, shares[ALL_PERMITS] and #ended or 0 do
      if ended[at] == PAUSE then
        -- slow path: W25: the pause is over
        end_pause() -- defect: W25-end
      end
    end
  end
  backlog = #ended == MOST
  first_end = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2] or 0
end

-- For scripts that cannot rely on the counts: counts all holders if the witnesses differ (W21), and frees the shares of
-- ended leases. W9: it changes nothing if no lease has ended, as the server may then refuse for lack of memory.
local function settle()
  settled = true
  local there = redis.call('ZCARD', holders)
  local again = members ~= there or not counted and (noted or there > 0) -- defect: W21-members
  if there == 0 then
    clear() -- without holders nothing is in use, even if shares were guessed after the hash was deleted
    if again then
      -- slow path: Redis removed the set when its last lease ended: the terms of its holders go with it.
      members, first_end, kept_until = 0, 0, 0 -- equivalent: 1 (second) + 1 (third), 0 and 1 are past
      redis.call('DEL', meta)
      if heaviest >= ALL_PERMITS then
        longest, heaviest = 0, 0 -- W25: a pause was the last
      end
      if described then
        -- equivalent: constant, any text
        redis.call('HSET', meta, 'fence', newest, 'ttl', longest, 'line', '1', other_fields())
        redis.call('PEXPIRE', meta, idle_life(longest))
      end
    end
    return
  end
  if again then
    -- slow path
    count_again()
  end
  if again or first_end - now_ms <= 0 or first_end - now_ms > longest then
    -- slow path
    remove_ended()
    note()
  end
end

-- Lets releases know that there may be a queue to hand over to.
local function expect_queue()
  if not in_line and described then
    -- equivalent: constant, any text
    redis.pcall('HSET', meta, 'line', '1') -- if that is refused, as at the memory limit, a re-check hands over
    if newest == 0 then
      redis.call('PEXPIRE', meta, idle_life(longest)) -- the hash may be new
    end
    in_line = '1' -- equivalent: constant, any text
  end
end

-- Says whether a share can be had now, as `judge` does. *head* is true for the first waiter in the queue.
local function can_grant(share, token, head)
  share = share + 0
  local verdict, amount = judge(share, token)
  if verdict ~= 'later' then
    return verdict, amount
  end
  -- slow path
  if not settled then
    settle()
    verdict, amount = judge(share, token)
    if verdict ~= 'later' then
      return verdict, amount
    end
  end
  local latest = clamp()
  if latest then
    -- slow path
    first_end = math.min(first_end, latest)
    note() -- otherwise what these leases hold would be missing for as long as the clock went back
  end
  if head then
    expect_queue()
  end
  return verdict, amount
end

-- Ends the lease of a holder. Returns true if it was live.
local function drop(token)
  local live = not backlog or is_live(token)
  if redis.call('ZREM', holders, token) == 0 then
    return false
  end
  local share = string.match(token == asking and own or redis.call('HMGET', meta, token)[1] or '', '^%d+')
  redis.call('HDEL', meta, token)
  members, unwritten = members - 1, true
  if share then
    count(share, -1)
  else
    -- slow path: what it was counted as is not known
    count_again()
  end
  return live
end

local function take_back(token)
  drop(token)
  note()
end

-- Writes the terms of a live lease again after the hash was deleted. Returns its new fencing token.
local function describe_again(token, share)
  newest = math.max(newest + 1, now_us)
  newest_text = digits(newest)
  redis.call('HSET', meta, 'line', '1', 'fence', newest_text, token, share .. ' ' .. newest_text)
  redis.call('PEXPIRE', meta, idle_life(longest))
  if heaviest == 0 then -- nothing is known of the other holders
    heaviest = math.max(members == 1 and 0 or unknown_share(), share)
    if described then
      redis.call('HSET', meta, 'ttl', longest, other_fields())
    end
  end
  count_again()
  note()
  return newest
end
