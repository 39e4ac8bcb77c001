"""A holder's key without an expiry, as PERSIST leaves it: a live holder repairs it, a dead one is named to people."""

import asyncio
import json

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lock
from aiolocks.cli import main
from aiolocks.compat import RedisLock
from tests.support.lateness import kept
from tests.support.servers import RedisServer

KEY = "aiolocks:lock:{orders}"
GONE = b"abcdefghijk"
"""The id of a session that is gone."""


async def _orphan(redis: Redis, key: str = KEY) -> None:
    value = GONE + b"0123456789012345678901"
    await redis.set(key, value + b" 1790000000000000" if key == KEY else value)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "no expiry" in line]


async def test_the_renewal_of_a_live_holder_restores_the_expiry(redis: Redis, another: Redis) -> None:
    async with kept(0.6), Lock(another, "orders", ttl=0.6) as lease:
        await redis.persist(KEY)
        async with asyncio.timeout(5):
            while await redis.pttl(KEY) < 0:
                await asyncio.sleep(0.01)
        lease.check()


async def test_a_waiter_of_an_endless_lease_is_told_no_time_and_warns_once(
    redis: Redis, another: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await _orphan(redis)
    for _ in range(2):
        with pytest.raises(AcquireTimeoutError) as error:
            await Lock(another, "orders", ttl=0.8).acquire(timeout=1.2)
        assert error.value.retry_after is None
    assert len(_warnings(caplog)) == 1, caplog.messages
    assert "orders" in _warnings(caplog)[0]
    assert "0123456789" not in caplog.text
    await Lock(another, "orders").revoke(force=True)
    async with Lock(another, "orders"):
        pass


async def test_no_warning_is_given_of_a_lease_whose_session_is_known_or_that_is_another_librarys(
    redis: Redis, another: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    held = await Lock(redis, "orders", renew=False).acquire()
    await redis.persist(KEY)
    with pytest.raises(AcquireTimeoutError):
        await Lock(another, "orders", ttl=0.8).acquire(timeout=1.2)
    await held.release()
    plain = redis.lock("plain", timeout=None)
    assert await plain.acquire()
    assert not await RedisLock(another, "plain", timeout=0.8, blocking_timeout=1.2).acquire()
    await plain.release()
    assert not _warnings(caplog)


async def test_in_the_key_of_redis_pys_lock_an_endless_lease_of_ours_is_warned_of(
    redis: Redis, another: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await _orphan(redis, "plain")
    assert not await RedisLock(another, "plain", timeout=0.8, blocking_timeout=1.2).acquire()
    assert len(_warnings(caplog)) == 1
    await redis.delete("plain")


async def test_the_command_line_names_an_endless_lease_and_frees_it_by_force(
    own_server: RedisServer, own: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*words: str) -> tuple[int, str]:
        status = await asyncio.to_thread(main, [*words, "--url", own_server.url])
        return status, capsys.readouterr().out

    await _orphan(own)
    status, printed = await run("show", "orders")
    assert (status, "aiolocks release orders --force" in printed) == (0, True)
    [shown] = json.loads((await run("show", "orders", "--json"))[1])
    assert shown["holders"][0]["state"] == "orphaned"
    checks = {each["check"]: each for each in json.loads((await run("doctor", "--json"))[1])["checks"]}
    assert checks["holders"]["verdict"] == "warning"
    assert "orders" in checks["holders"]["found"]
    status, printed = await run("release", "orders", "--timeout", "0.2")
    assert (status, "--force" in printed) == (1, True)
    assert (await run("release", "orders", "--force"))[0] == 0
    assert (await run("show", "orders"))[0] == 1
