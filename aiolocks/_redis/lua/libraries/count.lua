-- Counting permits in use anew.
-- Needs the names: holders, meta, now_ms, limit_in_force, newest, heaviest, longest, used, members, kept_until, MOST.

-- Where nobody was ever granted more than one permit, each holder has one, and none has to be asked about; nor where
-- the hash was deleted. Without a limit nothing can be granted until one is declared, which counts. A holder of which
-- nothing is known, as its field was deleted, counts as the largest weight there was; or as all that there is, if that
-- is gone too. Nothing is granted beside such a one, and so no largest weight is noted.
local left = redis.call('PTTL', holders)
local unknown = heaviest > 0 and heaviest or limit_in_force
members, kept_until = redis.call('ZCARD', holders), now_ms + math.max(left, 0)
longest = longest > 0 and longest or math.max(left, 0)
if heaviest == 1 or newest == 0 or limit_in_force == 0 then -- newest: a limit was declared since, but nothing granted
  used = unknown * members
else
  used = 0
  local tokens = redis.call('ZRANGE', holders, 0, -1)
  for from = 1, #tokens, MOST do
    for _, terms in ipairs(redis.call('HMGET', meta, unpack(tokens, from, math.min(from + MOST - 1, #tokens)))) do
      -- The usual one digit is read without making a text of it: that is most of what it costs to count thousands.
      local one, two = string.byte(terms or '', 1, 2)
      used = used + (two == 32 and one - 48 or terms and string.match(terms, '^%d+') or unknown)
    end
  end
end
