-- A clock that stepped back left scores further ahead than any lease can last: nobody renews those of the dead, so
-- bring them down to what a holder that lives has been promised at most.
-- Needs the names: holders, now_ms, longest, first_end, MOST, note.
if longest > 0 then -- else the hash was deleted under its holders
  local latest = now_ms + longest
  local ahead = redis.call('ZRANGEBYSCORE', holders, '(' .. digits(latest), '+inf', 'LIMIT', 0, MOST)
  if ahead[1] then
    local scores = {}
    for _, token in ipairs(ahead) do
      scores[#scores + 1], scores[#scores + 2] = latest, token
    end
    redis.call('ZADD', holders, 'XX', unpack(scores))
    first_end = math.min(first_end, latest)
    note() -- else permits would be missing for as long as the clock went back
  end
end
