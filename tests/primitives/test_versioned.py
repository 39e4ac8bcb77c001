"""`Versioned`: a value is written only if nobody has written it since it was read."""

import asyncio
from typing import Any

import pytest
import redis as redis_sync
from redis.asyncio import Redis
from redis.exceptions import WatchError

from aiolocks import LockError, LockManager, VersionConflictError, Versioned
from tests.support.clients import client_at

pytest_plugins = ["tests.support.table"]
pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_sessions")]

KEY = "test:stock"


@pytest.fixture
def stock(client: Redis) -> Versioned:
    return Versioned(client, KEY)


def one_more(value: bytes | None) -> int:
    return int(value or 0) + 1


async def test_where_there_is_nothing_the_value_is_none_and_may_be_written_once(stock: Versioned) -> None:
    value, version = await stock.read()
    assert value is None
    await stock.write("first", version)
    with pytest.raises(VersionConflictError):
        await stock.write("second", version)
    assert (await stock.read())[0] == b"first"


async def test_a_conflict_names_both_versions_and_changes_nothing(stock: Versioned) -> None:
    _, seen = await stock.read()
    actual = await stock.write("theirs", seen)
    with pytest.raises(VersionConflictError) as conflict:
        await stock.write("ours", seen)
    assert (conflict.value.name, conflict.value.expected, conflict.value.actual) == (KEY, seen, actual)
    assert isinstance(conflict.value, LockError)
    assert await stock.read() == (b"theirs", actual)


async def test_the_same_value_written_again_is_another_version(stock: Versioned) -> None:
    _, nothing = await stock.read()
    first = await stock.write("same", nothing)
    second = await stock.write("same", first)
    with pytest.raises(VersionConflictError):
        await stock.write("other", first)
    await stock.write("other", second)


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


async def test_a_value_that_others_have_written_can_be_read_and_written(stock: Versioned, client: Redis) -> None:
    await client.set(KEY, "theirs")
    value, version = await stock.read()
    assert value == b"theirs"
    await stock.write("ours", version)
    assert await client.get(KEY) == b"ours"


async def test_a_write_is_a_conflict_for_a_client_that_watches_the_key(stock: Versioned, client: Redis) -> None:
    transaction: Any
    async with client.pipeline(transaction=True) as transaction:
        await transaction.watch(KEY)
        await stock.update(lambda _: "ours")
        transaction.multi()
        transaction.set(KEY, "theirs")
        with pytest.raises(WatchError):
            await transaction.execute()
    assert (await stock.read())[0] == b"ours"


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


async def test_updates_and_watched_transactions_lose_nothing_of_each_others(stock: Versioned, client: Redis) -> None:
    async def by_transaction() -> None:
        async def add(pipe: Any) -> None:
            value = await pipe.get(KEY)
            pipe.multi()
            pipe.set(KEY, one_more(value))

        await client.transaction(add, KEY)

    works = [stock.update(one_more) if number % 2 else by_transaction() for number in range(20)]
    await asyncio.gather(*works)
    assert await client.get(KEY) == b"20"


async def test_an_update_gives_up_after_as_many_attempts_as_are_allowed(stock: Versioned, client: Redis) -> None:
    calls = 0

    async def disturbed(value: bytes | None) -> str:
        nonlocal calls
        calls += 1
        await client.set(KEY, f"theirs {calls}")
        return "ours"

    with pytest.raises(VersionConflictError):
        await stock.update(disturbed, attempts=3)
    assert calls == 3
    assert await client.get(KEY) == b"theirs 3"


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


SHAPES = ["a", "{a}", "{a}b", "x{a}", "tagged:{a}", "{}", "}{", "{", "a}", "{21364}:a}", "%7B", "%", "%25"]


@pytest.mark.parametrize("key", SHAPES)
async def test_keys_of_any_shape_stay_apart(client: Redis, key: str) -> None:
    versions = {other: (await Versioned(client, other, expire=5).update(lambda _: "same"))[1] for other in SHAPES}
    await Versioned(client, key).write("new", versions.pop(key))
    for other, version in versions.items():
        assert await Versioned(client, other).read() == (b"same", version)
    await client.flushdb()


@pytest.mark.parametrize("value", [None, True, ["a"], object()])
async def test_a_value_that_redis_cannot_hold_or_a_version_that_is_none_is_a_type_error(
    stock: Versioned, value: Any
) -> None:
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


NOBODY = Redis(port=1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"expire": 0}, ValueError),
        ({"expire": float("nan")}, ValueError),
        ({"expire": "1"}, TypeError),
        ({"prefix": "{"}, ValueError),
        ({"ttl": 5}, TypeError),
    ],
)
async def test_a_bad_option_is_an_error_at_once(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Versioned(NOBODY, KEY, **options)


async def test_a_bad_client_or_key_is_an_error_at_once() -> None:
    synchronous: Any = redis_sync.Redis()
    key: Any = b"bytes"
    with pytest.raises(TypeError, match=r"redis\.asyncio"):
        Versioned(synchronous, KEY)
    with pytest.raises(TypeError):
        Versioned(NOBODY, key)
    with pytest.raises(ValueError):
        Versioned(NOBODY, "")
