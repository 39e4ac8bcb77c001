-- Accept a fencing token that several servers must agree on. P8: refuse it if a larger number was accepted here, or the
-- same number for another token. So of two that a majority accepts, the later is the larger.
--
-- KEYS[1]  agreed   string  the largest fencing token accepted here, and whose it is; lives for a day
-- KEYS[2]  fence    string  last fencing token of this server's grants, which continue from the accepted one
-- ARGV[1]  token    bytes   token of the request
-- ARGV[2]  number   int     the fencing token
-- ARGV[3]  needed_s int     minimum uptime of the server in seconds; left out: any
-- returns  0 if it is accepted; else the number accepted before; or minus the ms until the server has that uptime (W22)
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
