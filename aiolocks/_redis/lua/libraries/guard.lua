-- Running commands of the holder's own, once: what they answered is kept beside the number of the run.
-- Needs the names: record, number, keep_ms, names, words; and `numbers`.

-- In Redis's own protocol, so that an answer that was kept and one that is new read alike.
local function encoded(reply)
  if type(reply) == 'number' then
    return ':' .. string.format('%.0f', reply) .. '\r\n'
  elseif type(reply) == 'string' then
    return '$' .. string.len(reply) .. '\r\n' .. reply .. '\r\n'
  elseif type(reply) ~= 'table' then
    return '$-1\r\n'
  elseif reply.err then
    local text = string.gsub(tostring(reply.err), '^@user_script: *%d+: *%-?', '') -- what Redis 6.2 puts in front
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

-- The answer of this very run, if it was sent before; or -1 when a later one has run, so that the caller does not
-- await this one.
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

-- Stops at the first error. The record comes last: where even that is refused, as at the memory limit, nothing has
-- been written, and to run again is harmless.
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
    return kept -- a primary no more, so nothing has been written: another server must be asked
  end
  return answer
end
