-- The version of a plain value: `write-digest`, if the mark next to the value names the write that made it. A value
-- that does not match its mark was written by a program that leaves no mark; its version is the digest alone.
-- Needs the names: value, mark.

-- The server in memory has no sha1hex.
local function digest(text)
  if redis.sha1hex then
    return redis.sha1hex(text)
  end
  local one, two = 1, 7
  for at = 1, string.len(text) do
    local byte = string.byte(text, at)
    one, two = (one * 257 + byte) % 67108859, (two * 263 + byte) % 67108837
  end
  return string.format('%020.0f%010.0f%010.0f', string.len(text), one, two)
end

local ABSENT = 'absent'

-- Returns the value, or false, and its version; and true if there is no mark, because no mark lasts for ever.
local function look()
  local now = redis.call('GET', value)
  if not now then
    return now, ABSENT
  end
  local marked = redis.call('GET', mark)
  local sum = digest(now)
  if marked and string.sub(marked, -40) == sum then
    return now, marked
  end
  return now, '-' .. sum, not marked
end
