-- Report the state of a session's waiters, keep them in the queue, and hand over. Never creates a waiter.
--
-- KEYS[1]  holders   zset   token -> server time (ms) at which its lease ends
-- KEYS[2]  meta      hash   limit, fence, weight, ttl, used, line; and token -> `permits fence [mark]`
-- KEYS[3]  queue     zset   session -> ticket of its first waiter
-- KEYS[4]  waiters   zset   entry of each waiter of this session -> ticket
-- ARGV[1]  address   bytes  the session that asks; see `libraries/address`
-- ARGV[2…] entries   bytes  the waiters that the session believes to have
-- returns  as `lock/recheck`, and the limit in force; 0 also for a waiter that exceeds the limit, or if none is known
local asking = ''
-- uses     numbers, address, leases, semaphore, books, queue, hand_over
-- defect: W3-recheck
redis.call('PEXPIRE', waiters, life_ms) -- W9: this write is allowed at the memory limit, and then all are
settle()

-- Returns the answer for a waiter in line; false if it can never be granted, so that it asks again and is refused. If
-- the limit was forgotten, the first waiter asks again too, which brings the limit back; it keeps its place.
local function standing(ticket, permits, first)
  if limit_in_force == 0 then
    return first and 0 or ticket
  end
  return permits <= limit_in_force and ticket
end
local answers, passed_over = recheck(fence_of, standing)
local before = newest
local grants = {}
hand_over(grants) -- defect: W7-recheck
-- defect: W5-recheck-permits, W1-recheck
return { subscribers(session), not_before(), before, passed_over, answers, grants, limit_in_force }
