-- Return a value with its version. Changes nothing.
--
-- KEYS[1]  value  string  the value itself, as any program can read or write it
-- KEYS[2]  mark   string  version that the last write through aiolocks gave it
-- returns  {value or nil, version}
-- uses     version
local now, version = look()
return { now, version }
