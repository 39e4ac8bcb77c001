"""A holder's key without an expiry, as PERSIST leaves it: a live holder repairs it, a dead one is named to people."""

import asyncio
import json

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lock
from aiolocks.cli import main
from aiolocks.compat import RedisLock
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.faults]

KEY = "aiolocks:lock:{orders}"
GONE = b"abcdefghijk"
"""The id of a session that is gone."""


async def _orphan(redis: Redis, key: str = KEY) -> None:
    value = GONE + b"0123456789012345678901"
    await redis.set(key, value + b" 1790000000000000" if key == KEY else value)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "no expiry" in line]


@pytest.mark.asyncio
async def test_the_renewal_of_a_live_holder_restores_the_expiry(one_server: RedisServer, redis: Redis) -> None:
    async with Redis.from_url(one_server.url) as client, Lock(client, "orders", ttl=0.6) as lease:
        await redis.persist(KEY)
        async with asyncio.timeout(5):
            while await redis.pttl(KEY) < 0:
                await asyncio.sleep(0.01)
        assert lease.held


@pytest.mark.asyncio
async def test_a_waiter_of_an_endless_lease_is_told_no_time_and_warns_once(
    one_server: RedisServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await _orphan(redis)
    async with Redis.from_url(one_server.url) as client:
        for _ in range(2):
            with pytest.raises(AcquireTimeoutError) as error:
                await Lock(client, "orders", ttl=0.8).acquire(timeout=1.2)
            assert error.value.retry_after is None
        assert len(_warnings(caplog)) == 1, caplog.messages
        assert "orders" in _warnings(caplog)[0]
        assert "0123456789" not in caplog.text
        await Lock(client, "orders").revoke(force=True)
        async with Lock(client, "orders"):
            pass


@pytest.mark.asyncio
async def test_no_warning_is_given_of_a_lease_whose_session_is_known_or_that_is_another_librarys(
    one_server: RedisServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with Redis.from_url(one_server.url) as client, Redis.from_url(one_server.url) as holder:
        held = await Lock(holder, "orders", renew=False).acquire()
        await redis.persist(KEY)
        with pytest.raises(AcquireTimeoutError):
            await Lock(client, "orders", ttl=0.8).acquire(timeout=1.2)
        await held.release()
        plain = holder.lock("plain", timeout=None)
        assert await plain.acquire()
        assert not await RedisLock(client, "plain", timeout=0.8, blocking_timeout=1.2).acquire()
        await plain.release()
    assert not _warnings(caplog)


@pytest.mark.asyncio
async def test_in_the_key_of_redis_pys_lock_an_endless_lease_of_ours_is_warned_of(
    one_server: RedisServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await _orphan(redis, "plain")
    async with Redis.from_url(one_server.url) as client:
        assert not await RedisLock(client, "plain", timeout=0.8, blocking_timeout=1.2).acquire()
    assert len(_warnings(caplog)) == 1
    await redis.delete("plain")


def test_the_command_line_names_an_endless_lease_and_frees_it_by_force(
    own_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(_orphan_at(own_server))
    url = own_server.url
    assert main(["show", "orders", "--url", url]) == 0
    assert "aiolocks release orders --force" in capsys.readouterr().out
    assert main(["show", "orders", "--url", url, "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert shown["holders"][0]["state"] == "orphaned"
    main(["doctor", "--url", url, "--json"])
    checks = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["holders"]["verdict"] == "warning"
    assert "orders" in checks["holders"]["found"]
    assert main(["release", "orders", "--url", url, "--timeout", "0.2"]) == 1
    assert "--force" in capsys.readouterr().out
    assert main(["release", "orders", "--url", url, "--force"]) == 0
    assert main(["show", "orders", "--url", url]) == 1


async def _orphan_at(server: RedisServer) -> None:
    async with Redis.from_url(server.url) as redis:
        await _orphan(redis)
