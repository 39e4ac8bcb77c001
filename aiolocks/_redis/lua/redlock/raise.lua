-- Accept a fencing token that several servers must agree on, or refuse it.
--
-- It is refused when a larger one was accepted here, or this very one from another process. So of two that a majority
-- accepts, the later is the larger.
--
-- KEYS[1]  agreed   string  `fencing token` and whose it is: the largest accepted here; lives for a day
-- KEYS[2]  fence    string  last fencing token of this server's own grants, which goes on from what was accepted
-- ARGV[1]  token    bytes   who asks
-- ARGV[2]  number   int     the fencing token
-- ARGV[3]  needed_s int     the uptime in seconds that the server must have; left out: any will do
-- returns  0 when it is accepted, else the larger or equal one that stands in the way; or minus the ms until the server
--          has that uptime
-- uses     hand_over
if needed_s then
  -- slow path
  local up = seconds_up()
  if not up or needed_s - up > 0 then
    return up and -1000 * (needed_s - up) or uptime_unknown()
  end
end
local DAY = 86400
local known, owner = string.match(redis.call('GET', agreed) or '', '^(%d+) (%S+)$')
if known and (tonumber(known) > tonumber(number) or (known == number and owner ~= token)) then -- defect: P8-agreed
  return tonumber(known)
end
redis.call('SET', agreed, number .. ' ' .. token, 'EX', DAY)
-- equivalent: comparison, where equal, either gives the same
if tonumber(redis.call('GET', fence) or 0) < tonumber(number) then
  redis.call('SET', fence, number, 'EX', DAY)
end
return 0
