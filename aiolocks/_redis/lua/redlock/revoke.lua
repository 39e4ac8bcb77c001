-- Report who holds the name on this server; and if its lease is one of those meant, revoke it (W16) or end it at once.
--
-- KEYS[1]  agreed        string  the largest fencing token accepted here, and the token of its holder
-- KEYS[2]  holder        string  `token fence [mark]` of the current holder
-- ARGV[1]  tombstone_ms  int     0: mark it; else end it at once, and bury its token for so long
-- ARGV[2]  reason        bytes   why, for the holder; can be empty
-- ARGV[3…] meant         bytes   the secret parts of the tokens meant, the same on all servers; none: only look
-- returns  {the secret part of the holder's token, or an empty text if none is left; its fencing token, or 0 if that
--          was not accepted here; ms until its lease ends}
-- uses     mutex, revoke
local OWN = -22 -- where the secret part begins; see `_core/tokens`
local value = redis.call('GET', holder)
local owner, _, mark = parts_of(value or '')
local number, whose = string.match(redis.call('GET', agreed) or '', '^(%d+) (%S+)$')
local left, own = redis.call('PTTL', holder), string.sub(owner, OWN)
for _, one in ipairs(meant) do
  if value and one == own and (tombstone_ms ~= '0' or mark == 'C') then -- or it is cooling
    redis.call('DEL', holder) -- W9: this write frees memory, and then all are allowed
    if tombstone_ms ~= '0' then
      redis.pcall('SET', holder .. ':t:' .. owner, 'R', 'PX', math.max(left, tombstone_ms) .. '')
      keep_reason(holder, owner, left)
    end
    return { '', 0, 0 }
  elseif value and one == own and mark == '' then
    keep_as_it_is(holder, left)
    redis.call('SET', holder, value .. ' R', 'KEEPTTL')
    keep_reason(holder, owner, left)
    mark = 'R'
  end
end
return { own, string.sub(whose or '', OWN) == own and tonumber(number) or 0, mark == 'C' and 0 or math.max(left, 0) }
