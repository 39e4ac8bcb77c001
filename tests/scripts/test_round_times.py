"""A time reaches a command as text, because Redis 7.2.0 to 7.2.4 writes the number 100000000 as 1e+08."""

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, RWLock, Semaphore
from aiolocks._redis import scripts

STRICT = """
local unchecked = redis
local function strict(command)
  return function(name, ...)
    for _, word in ipairs(name == 'PEXPIRE' and { ... } or name == 'SET' and { ... } or {}) do
      if type(word) == 'number' then error(word .. ' is a number') end
    end
    return command(name, ...)
  end
end
local redis = setmetatable({ call = strict(redis.call), pcall = strict(redis.pcall) }, { __index = unchecked })
"""


@pytest.mark.parametrize("ttl", [50_000, 100_000, 200_000])
async def test_a_round_ttl_is_an_argument_as_text(client: Redis, monkeypatch: pytest.MonkeyPatch, ttl: int) -> None:
    monkeypatch.setattr(scripts, "_FLAG", scripts._FLAG + STRICT)
    scripts.load.cache_clear()
    try:
        for of in (Semaphore(client, "s", 3, ttl=ttl), RWLock(client, "rw", ttl=ttl).write, Lock(client, "l", ttl=ttl)):
            async with of as lease:
                adopted = await of.adopt(await lease.hand_off(ttl=ttl))
            async with adopted:
                assert await adopted.renew(2 * ttl)
    finally:
        scripts.load.cache_clear()
