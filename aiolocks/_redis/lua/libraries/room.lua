-- Ends each entry, which so has more than 64 bytes: then Redis keeps the line in order as a skip list, while it would
-- read through a hundred shorter entries, packed one behind the other, for every one that comes and goes.
local ROOM = ' ..............................'
