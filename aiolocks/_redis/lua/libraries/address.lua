-- Who asks: the session, for how many ms it counts as alive without a re-check, and the prefix of every session's
-- channel. They come as one argument: each argument costs the server as much as a third of a GET, and when a name is
-- free, none of the three is needed.
-- Needs the names: address.

local session, life_ms, channels = string.match(address, '^(%S+) (%d+) (.*)$')
