"""`Versioned`: a value is written only if nobody has written it since it was read."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import redis as redis_sync
from redis.asyncio import Redis

from aiolocks import LockError, LockManager, VersionConflictError, Versioned
from tests.support.clients import client_at
from tests.support.primitives import NO_SERVER

pytestmark = pytest.mark.usefixtures("quick_sessions")

KEY = "test:stock"


@pytest.fixture
def stock(client: Redis) -> Versioned:
    return Versioned(client, KEY)


def one_more(value: bytes | None) -> int:
    return int(value or 0) + 1


async def test_what_is_not_there_is_written_once_and_a_conflict_changes_nothing(stock: Versioned) -> None:
    value, seen = await stock.read()
    assert value is None
    actual = await stock.write("theirs", seen)
    with pytest.raises(VersionConflictError) as conflict:
        await stock.write("ours", seen)
    assert (conflict.value.name, conflict.value.expected, conflict.value.actual) == (KEY, seen, actual)
    assert isinstance(conflict.value, LockError)
    assert await stock.read() == (b"theirs", actual)


async def test_the_value_is_in_its_plain_key(stock: Versioned, client: Redis) -> None:
    await stock.update(lambda _: b"\xff\0plain")
    assert await client.get(KEY) == b"\xff\0plain"


@pytest.mark.parametrize(
    "command", [("SET", KEY, "theirs"), ("APPEND", KEY, "!"), ("DEL", KEY), ("SETRANGE", KEY, 0, "x")]
)
async def test_a_plain_write_from_elsewhere_is_a_conflict(stock: Versioned, client: Redis, command: Any) -> None:
    _, version = await stock.update(lambda _: "ours")
    execute: Any = client.execute_command
    await execute(*command)
    with pytest.raises(VersionConflictError):
        await stock.write("more", version)


async def test_an_update_may_be_computed_by_a_coroutine(stock: Versioned) -> None:
    async def slowly(value: bytes | None) -> int:
        await asyncio.sleep(0)
        return one_more(value)

    await stock.update(slowly)
    new, version = await stock.update(slowly)
    assert new == 2
    assert await stock.read() == (b"2", version)


async def test_of_updates_at_once_none_is_lost(client: Redis) -> None:
    await asyncio.gather(*(Versioned(client, KEY).update(one_more) for _ in range(50)))
    assert await client.get(KEY) == b"50"


async def test_an_exception_of_the_function_leaves_as_it_is_and_nothing_is_written(stock: Versioned) -> None:
    def fail(_: bytes | None) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await stock.update(fail)
    assert (await stock.read())[0] is None


async def test_values_are_decoded_as_the_client_does_it(redis_url: str) -> None:
    async with client_at(f"{redis_url}?decode_responses=true") as client:
        stock = Versioned(client, KEY)

        def louder(value: str | None) -> str:
            return (value or "é") + "!"

        await stock.update(louder)
        await stock.update(louder)
        assert (await stock.read())[0] == "é!!"


@pytest.mark.parametrize("value", [None, True, ["a"], object()])
async def test_a_value_that_redis_cannot_hold_or_no_version_is_a_type_error(stock: Versioned, value: Any) -> None:
    version: Any = None
    with pytest.raises(TypeError, match="version"):
        await stock.write("a", version)
    with pytest.raises(TypeError, match="value"):
        await stock.write(value, "absent")
    with pytest.raises(TypeError, match="value"):
        await stock.update(lambda _: value)


async def test_the_manager_makes_one_with_its_prefix(client: Redis) -> None:
    await LockManager(client, ttl=5, prefix="app:").versioned(KEY, expire=5).update(one_more)
    assert {key.split(b":")[0] async for key in client.scan_iter()} == {b"test", b"app"}
    await client.flushdb()


async def test_a_bad_option_client_or_key_is_an_error_at_once() -> None:
    anyhow: Any = Versioned
    for bad in (0, float("nan"), float("inf"), 10**400, timedelta(0), timedelta(microseconds=1), timedelta(-1)):
        for make in (partial(anyhow, NO_SERVER), LockManager(NO_SERVER).versioned):
            with pytest.raises(ValueError, match="expire"):
                make(KEY, expire=bad)
    for client, key, options, error, says in (
        (NO_SERVER, KEY, {"expire": "1"}, TypeError, "expire"), (NO_SERVER, KEY, {"prefix": "{"}, ValueError, "prefix"),
        (NO_SERVER, KEY, {"ttl": 5}, TypeError, "ttl"), (redis_sync.Redis(), KEY, {}, TypeError, r"redis\.asyncio"),
        (NO_SERVER, b"bytes", {}, TypeError, "name"), (NO_SERVER, "", {}, ValueError, "name"),
    ):  # fmt: skip
        with pytest.raises(error, match=says):
            anyhow(client, key, **options)
