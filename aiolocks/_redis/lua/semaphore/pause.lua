-- Pause the semaphore, or end its pause: nothing is granted during it, and held permits stay held (W25). A pause
-- is a cooling lease with more permits than can be free, so it stops older versions of these scripts too.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of each waiter of this session -> ticket
-- ARGV[1]  pause_ms  int    how long it lasts at least from now on; 0: end it
-- ARGV[2]  address   bytes  the session that asks; see `libraries/address`
-- returns  {ms that the pause has left; or 1 if it was ended, and 0 if there was none; grants for this session…}
local asking = ''
-- uses     numbers, address, leases, semaphore, books, queue, hand_over
settle()
redis.call('ZCARD', queue)
redis.call('ZCARD', waiters) -- W9: a key of another type fails before anything is changed
if pause_ms == '0' then
  -- slow path
  local reply = { drop(PAUSE) and 1 or 0 } -- W9: this write is allowed at the memory limit, and then all are
  if unwritten then
    local latest = clamp() -- P9: after a step back of the clock -- defect: W25-resume-clock
    first_end = latest and math.min(first_end, latest) or first_end
    end_pause() -- defect: W25-resume
    note()
  end
  hand_over(reply) -- defect: W7-resume
  return reply
end
keep(pause_ms) -- W9: this write is allowed at the memory limit, and then all are -- defect: W25-memory
can_grant(1) -- P9: after a step back of the clock, an earlier pause lasts no longer than any lease
local ends = now_ms + pause_ms
local added = redis.call('ZADD', holders, 'GT', ends, PAUSE) -- defect: W25-extends
members = members + added
count(ALL_PERMITS, added) -- defect: W25-counted
if added == 0 and not redis.call('HMGET', meta, PAUSE)[1] then
  -- slow path: the hash was deleted, so the pause was counted as a holder of which nothing is known
  count(ALL_PERMITS - unknown_share(), 1) -- defect: W25-forgotten
end
longest = math.max(longest, pause_ms) -- P9: the clamp would cut it -- defect: W25-ttl
heaviest = math.max(heaviest, ALL_PERMITS) -- defect: W25-weight
first_end = math.min(first_end, ends)
newest_text = newest_text or '0' -- the witness of the counts
local terms = ALL_PERMITS .. ' ' .. digits(newest) .. ' C' -- defect: W25-terms
redis.call('HSET', meta, PAUSE, terms, 'fence', newest_text, 'ttl', longest, COUNTS, counts(), other_fields())
keep(pause_ms) -- the keys may be new
local left_ms = redis.call('ZSCORE', holders, PAUSE) - now_ms
local reply = { left_ms }
hand_over(reply) -- W2: it drops dead sessions, and returns waiters of this one to the queue
tell_when(reply, left_ms) -- W18 -- defect: W25-told
return reply
