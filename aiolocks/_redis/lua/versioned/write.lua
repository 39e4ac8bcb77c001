-- Write a value if it has the version that the writer has seen. The same write, sent twice, is done once (W10).
--
-- KEYS[1]  value      string  the value itself, as any program can read or write it
-- KEYS[2]  mark       string  version that the last write through aiolocks gave it
-- KEYS[3]  done       string  version that this same write gave it, if it was done before
-- ARGV[1]  expected   bytes   the version that the writer has seen
-- ARGV[2]  new        bytes   what to write
-- ARGV[3]  write      bytes   random text that names this write
-- ARGV[4]  expire_ms  int     how long the value lasts from now on, or 0 to leave that as it is
-- ARGV[5]  mark_ms    int     how long the mark lasts
-- ARGV[6]  done_ms    int     how long this write can be sent again
-- returns  {1, the new version}, or {0, the version that the value has}
-- uses     version
local before = redis.call('GET', done)
if before then -- defect: versioned-again
  return { 1, before }
end
local _, actual, unmarked = look()
-- defect: versioned-compare
if actual ~= expected and not (unmarked and string.sub(actual, -40) == string.sub(expected, -40)) then
  return { 0, actual }
end
local version = write .. '-' .. digest(new)
if expire_ms == '0' then
  redis.call('SET', value, new, 'KEEPTTL')
else
  redis.call('SET', value, new, 'PX', expire_ms)
end
redis.call('SET', mark, version, 'PX', mark_ms)
redis.call('SET', done, version, 'PX', done_ms)
return { 1, version }
