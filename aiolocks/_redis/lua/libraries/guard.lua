-- W10: runs commands of the holder once, and keeps their replies next to the number of the run.
-- Needs the names: record, number, keep_ms, names, words; and `numbers`.

-- Returns a reply in Redis's protocol, so that a kept one and a new one read the same.
local function encoded(reply)
  if type(reply) == 'number' then
    return ':' .. string.format('%.0f', reply) .. '\r\n'
  elseif type(reply) == 'string' then
    return '$' .. string.len(reply) .. '\r\n' .. reply .. '\r\n'
  elseif type(reply) ~= 'table' then
    return '$-1\r\n'
  elseif reply.err then
    local text = string.gsub(tostring(reply.err), '^@user_script: *%d+: *%-?', '') -- Redis 6.2 puts this in front
    return '-' .. string.gsub(text, '[\r\n]', ' ') .. '\r\n'
  elseif reply.ok then
    return '+' .. reply.ok .. '\r\n'
  end
  local parts = { '*' .. #reply .. '\r\n' }
  for at, part in ipairs(reply) do
    parts[at + 1] = encoded(part)
  end
  return table.concat(parts)
end

-- Returns the reply of this run, if it was sent before; or -1 if a later one has run, so its caller no longer waits.
local function answered()
  local kept = redis.call('GET', record)
  if kept then
    local gap = string.find(kept, ' ', 1, true)
    local last = tonumber(string.sub(kept, 1, gap - 1))
    if last == tonumber(number) then
      return string.sub(kept, gap + 1)
    end
    return last > tonumber(number) and -1 -- equivalent: comparison, the same number was answered above
  end
end

-- Stops at the first error. The record is written last: if even that is refused, as at the memory limit, nothing has
-- been written, and running again does no harm.
local function run()
  local answers = {}
  local at = tonumber(names) + 1
  while words[at] do
    local last = at + tonumber(words[at])
    local reply = redis.pcall(spread(words, at + 1, last))
    answers[#answers + 1] = encoded(reply)
    if type(reply) == 'table' and reply.err then
      break
    end
    at = last + 1
  end
  local answer = '*' .. #answers .. '\r\n' .. table.concat(answers)
  local kept = redis.pcall('SET', record, number .. ' ' .. answer, 'PX', keep_ms)
  if kept.err and string.find(kept.err, 'READONLY', 1, true) then
    return kept -- no longer a primary, so nothing was written: ask another server
  end
  return answer
end
