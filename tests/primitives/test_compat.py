"""`RedisLock` has the interface of redis-py's `Lock`: what that documents holds for both classes.

And what it is for: both exclude each other; waiters are served in order; nothing is lost with an answer.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.asyncio.lock import Lock as PlainLock
from redis.exceptions import LockError, LockNotOwnedError

from aiolocks.compat import RedisLock
from aiolocks.testing import FaultProxy
from tests.support.clients import CHOSEN, chosen_client
from tests.support.inside import leases_without_timeout_last
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import STEADY, cancelled, scripts_run, until
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis

one_server = pytest.mark.skipif(CHOSEN != "", reason="makes a client of its own, of one server")


@pytest_asyncio.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    if CHOSEN == "acl":
        pytest.skip("the documented rights are for the library's own keys")
    async with chosen_client(server) as client:
        yield client
        await client.delete("orders")


@pytest.fixture(params=[PlainLock, RedisLock], ids=["redis-py's", "aiolocks'"])
def kind(request: pytest.FixtureRequest) -> type[PlainLock]:
    chosen: type[PlainLock] = request.param
    return chosen


async def test_the_client_makes_one(redis: Redis, kind: type[PlainLock]) -> None:
    lock = redis.lock(
        "orders", timeout=10, sleep=0.01, blocking=True, blocking_timeout=1, lock_class=kind, thread_local=False,
        raise_on_release_error=False,
    )  # fmt: skip
    assert isinstance(lock, kind)
    assert (lock.name, lock.timeout, lock.blocking_timeout) == ("orders", 10, 1)
    assert (lock.sleep, lock.blocking, lock.thread_local, lock.raise_on_release_error) == (0.01, True, False, False)
    async with lock as entered:
        assert entered is lock


@pytest.mark.rest
@pytest.mark.parametrize("name", ["a", "with:colon", "a{tag}b", "{}odd", "a}b", "naïve ü", "{tag}", memoryview(b"b")])
async def test_the_key_is_the_name_and_holds_the_token_alone(redis: Redis, kind: type[PlainLock], name: Any) -> None:
    lock = redis.lock(name, timeout=10, lock_class=kind)
    assert await lock.acquire() is True
    assert await redis.get(name) == lock.local.token
    assert 9000 < await redis.pttl(name) <= 10000
    await lock.release()
    assert await redis.get(name) is None


async def test_a_token_of_the_callers_own(redis: Redis, kind: type[PlainLock]) -> None:
    for token in ("mine", b"mine"):
        lock = redis.lock("orders", timeout=10, lock_class=kind)
        assert await lock.acquire(token=token)
        assert await redis.get("orders") == lock.local.token == b"mine"
        await lock.release()


async def test_two_callers_that_bring_one_token_are_two_holders(redis: Redis, kind: type[PlainLock]) -> None:
    inside: list[str] = []

    async def work() -> None:
        lock = redis.lock("orders", timeout=10, sleep=0.01, lock_class=kind)
        assert await lock.acquire(token="job-7")
        inside.append("one")
        assert len(inside) == 1
        assert await redis.lock("orders", timeout=10, lock_class=kind).acquire(blocking=False, token="job-7") is False
        assert await redis.lock("orders", timeout=10, lock_class=kind).do_acquire(b"job-7") is False
        assert await lock.owned()
        inside.pop()
        await lock.release()

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(5))), 20)


async def test_asking_once(redis: Redis, kind: type[PlainLock]) -> None:
    first = redis.lock("orders", timeout=10, lock_class=kind)
    second = redis.lock("orders", timeout=10, lock_class=kind)
    assert await first.acquire(blocking=False) is True
    assert await second.acquire(blocking=False) is False
    assert await redis.lock("orders", blocking=False, lock_class=kind).acquire() is False
    assert not await redis.lock("orders", lock_class=kind, blocking_timeout=-0.5).acquire()
    assert await second.do_acquire(b"token") is False
    await first.release()
    assert await second.acquire(blocking=False) is True
    await second.release()
    assert await first.acquire(blocking_timeout=-1)
    await first.release()


async def test_a_caller_waits_blocking_timeout_and_gets_redis_pys_answer(redis: Redis, kind: type[PlainLock]) -> None:
    async with redis.lock("orders", timeout=10, lock_class=kind):
        before, begun = await scripts_run(redis), time.monotonic()
        async with in_time(0.3 + SLACK * 0.2):
            assert await redis.lock("orders", sleep=0.05, lock_class=kind).acquire(blocking_timeout=0.3) is False
        assert time.monotonic() - begun > 0.2
        with pytest.raises(LockError, match="Unable to acquire lock within the time specified"):
            async with redis.lock("orders", blocking_timeout=0.1, lock_class=kind):
                raise AssertionError
        assert await redis.lock("orders", lock_class=kind).acquire(blocking_timeout=0) is False
        async with in_time(0.5 + SLACK * 0.01):  # and not for as long as the sleep between two attempts
            assert await redis.lock("orders", sleep=60, blocking_timeout=0.5, lock_class=kind).acquire() is False
        assert await scripts_run(redis) - before < 30, "it looks every 0.1 s at most"


@pytest.mark.rest
@pytest.mark.parametrize("seconds", [0.02, 0.25])
async def test_a_lock_on_a_far_server_is_asked_for_once_whatever_the_time_to_wait(
    proxy: FaultProxy, kind: type[PlainLock], seconds: float
) -> None:
    proxy.delay_requests = 0.08
    async with Redis.from_url(proxy.url) as far:
        first = far.lock("orders", timeout=10, blocking_timeout=seconds, lock_class=kind)
        assert await first.acquire() is True
        assert await far.lock("orders", timeout=10, blocking_timeout=seconds, lock_class=kind).acquire() is False
        await first.release()


@pytest.mark.parametrize("theirs", [b"another's", b"host-1 77"])
async def test_locked_owned_and_releasing_what_others_have(redis: Redis, kind: type[PlainLock], theirs: bytes) -> None:
    lock, other = redis.lock("orders", timeout=10, lock_class=kind), redis.lock("orders", lock_class=kind)
    assert (await lock.locked(), await lock.owned()) == (False, False)
    await lock.acquire(token="host-1")
    assert (await lock.locked(), await lock.owned()) == (True, True)
    assert (await other.locked(), await other.owned()) == (True, False)
    await redis.set("orders", theirs)
    assert (await lock.locked(), await lock.owned()) == (True, False)
    with pytest.raises(LockNotOwnedError):
        await lock.release()
    assert (lock.local.token, await redis.get("orders")) == (None, theirs)


async def test_a_call_of_a_redis_py_lock_without_await_is_never_taken_for_its_answer(redis: Redis) -> None:
    lock = RedisLock(redis, "orders")
    for verb in ("acquire", "locked"):
        call: Any = getattr(lock, verb)()
        with pytest.raises(TypeError, match=rf"use `if await lock\.{verb}\(\):`"):
            if not call:
                pytest.fail("taken for an answer")
        call.close()
    assert await asyncio.wait_for(lock.acquire(), 5) is True
    assert await asyncio.create_task(lock.locked()) is True
    await lock.release()


async def test_releasing_what_is_not_held(redis: Redis, kind: type[PlainLock]) -> None:
    lock = redis.lock("orders", timeout=10, lock_class=kind)
    with pytest.raises(LockError, match="Cannot release a lock that's not owned or is already unlocked"):
        await lock.release()
    await lock.acquire()
    first, _ = await asyncio.wait_for(asyncio.gather(lock.release(), lock.release(), return_exceptions=True), 5)
    assert first is None
    with pytest.raises(LockError):
        await lock.release()


async def test_the_end_of_a_block_may_be_quiet_about_it(
    redis: Redis, kind: type[PlainLock], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LockNotOwnedError):
        async with redis.lock("orders", timeout=10, lock_class=kind):
            await redis.delete("orders")
    async with redis.lock("orders", timeout=10, raise_on_release_error=False, lock_class=kind):
        await redis.delete("orders")
    assert "no longer owned" in caplog.text


async def test_extending(redis: Redis, kind: type[PlainLock]) -> None:
    lock = redis.lock("orders", timeout=10, lock_class=kind)
    await lock.acquire()
    assert await lock.extend(10) is True
    assert 18000 < await redis.pttl("orders") <= 20000
    assert await lock.extend(5, replace_ttl=True) is True
    assert 4000 < await redis.pttl("orders") <= 5000
    assert await lock.reacquire() is True
    assert 9000 < await redis.pttl("orders") <= 10000
    assert await lock.extend(0.5) is True
    await lock.extend(0.1, replace_ttl=True)
    await until(lambda: _free(redis))
    with pytest.raises(LockNotOwnedError):
        await lock.release()


async def _free(redis: Redis) -> bool:
    return not await redis.exists("orders")


async def test_what_cannot_be_extended(redis: Redis, kind: type[PlainLock]) -> None:
    lock = redis.lock("orders", timeout=10, lock_class=kind)
    with pytest.raises(LockError, match="Cannot extend an unlocked lock"):
        await lock.extend(1)
    with pytest.raises(LockError, match="Cannot reacquire an unlocked lock"):
        await lock.reacquire()
    await lock.acquire()
    await redis.set("orders", "somebody else's", px=10000)
    with pytest.raises(LockNotOwnedError):
        await lock.extend(1)
    with pytest.raises(LockNotOwnedError, match="Cannot reacquire a lock that's no longer owned"):
        await lock.reacquire()
    with pytest.raises(LockNotOwnedError):
        await lock.release()
    endless = redis.lock("endless", lock_class=kind)
    await endless.acquire()
    with pytest.raises(LockError, match="Cannot extend a lock with no timeout"):
        await endless.extend(1)
    with pytest.raises(LockError, match="Cannot reacquire a lock with no timeout"):
        await endless.reacquire()
    await endless.release()


async def test_a_time_out_shorter_than_a_tenth_of_a_second(redis: Redis, kind: type[PlainLock]) -> None:
    first = redis.lock("orders", timeout=0.05, lock_class=kind)
    second = redis.lock("orders", timeout=0.05, sleep=0.01, lock_class=kind)
    assert await first.acquire()
    assert await second.acquire(blocking_timeout=2)
    assert not await first.owned()


@one_server
async def test_a_client_that_decodes(server: RedisServer, redis: Redis, kind: type[PlainLock]) -> None:
    async with Redis.from_url(server.url, decode_responses=True) as client:
        lock = client.lock("orders", timeout=10, lock_class=kind)
        await lock.acquire(token="mine")
        assert await lock.owned()
        await lock.extend(1)
        await lock.release()
        assert not await lock.locked()


async def test_a_token_may_be_handed_to_another_object(redis: Redis, kind: type[PlainLock]) -> None:
    lock = redis.lock("orders", timeout=10, lock_class=kind)
    await lock.acquire()
    worker = redis.lock("orders", timeout=10, thread_local=False, lock_class=kind)
    worker.local.token = lock.local.token
    assert await worker.owned()
    await worker.extend(10)
    await worker.release()
    assert not await lock.owned()


@pytest.mark.parametrize(("first", "second"), [(PlainLock, RedisLock), (RedisLock, PlainLock)], ids=["ours", "theirs"])
async def test_both_kinds_exclude_each_other(redis: Redis, first: Any, second: Any) -> None:
    inside = []

    async def work(kind: Any) -> None:
        async with redis.lock("orders", timeout=10, sleep=0.01, lock_class=kind):
            inside.append(kind)
            assert len(inside) == 1
            await asyncio.sleep(0.01)
            inside.pop()

    await asyncio.wait_for(asyncio.gather(*(work(kind) for kind in [first, second] * 5)), 20)


async def test_waiters_are_served_in_order_and_soon(redis: Redis) -> None:
    served = []
    first = redis.lock("orders", lock_class=RedisLock)
    await first.acquire()

    async def wait(number: int) -> None:
        async with redis.lock("orders", lock_class=RedisLock):
            served.append(number)

    waiting = [asyncio.ensure_future(wait(number)) for number in range(20)]
    await until(lambda: _in_line(redis, 20))
    await first.release()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert served == list(range(20))


async def _in_line(redis: Redis, count: int) -> bool:
    lines = [key async for key in redis.scan_iter("aiolocks:exact:{orders}:q:*")]
    return sum([await redis.zcard(line) for line in lines]) == count


async def test_tasks_may_share_one_object(redis: Redis) -> None:
    """The next task is woken ahead of the one that releases: that must not take its token away."""
    lock = redis.lock("orders", timeout=10, lock_class=RedisLock)
    inside = 0

    async def work() -> None:
        nonlocal inside
        async with lock:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.005)
            assert await lock.owned()
            inside -= 1

    async with asyncio.timeout(5):
        await asyncio.gather(*(work() for _ in range(5)))
    with pytest.raises(LockError, match="not owned"):
        await lock.release()


@one_server
@pytest.mark.parametrize("token", [None, "job-7"])
async def test_a_lost_answer_does_not_lose_the_lock(server: RedisServer, redis: Redis, token: str | None) -> None:
    async with FaultProxy(path=server.socket_path) as proxy, Redis(port=proxy.port) as client:
        lock = client.lock("orders", timeout=10, lock_class=RedisLock)
        await client.ping()
        proxy.drop_next_reply(b"job-7" if token else b"EVAL")
        assert await lock.acquire(token=token)
        assert await lock.owned()
        await lock.release()
        assert await _free(redis)


async def test_a_holder_whose_lock_is_freed_by_hand_loses_it_and_does_not_come_back(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leases_without_timeout_last(monkeypatch, 0.6)
    lock = redis.lock("orders", lock_class=RedisLock)
    await lock.acquire()
    await redis.delete("orders")
    async with redis.lock("orders", timeout=10, lock_class=RedisLock) as other:
        async with asyncio.timeout(5):
            while "gone from the server" not in caplog.text:
                await asyncio.sleep(0.01)
        assert (await lock.owned(), await other.owned()) == (False, True)
        with pytest.raises(LockNotOwnedError):
            await lock.release()
        assert await other.owned()


@pytest.mark.rest
async def test_one_token_for_two_locks_renews_both(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    leases_without_timeout_last(monkeypatch, STEADY)
    lock, other = redis.lock("orders", lock_class=RedisLock), redis.lock("others", lock_class=RedisLock)
    await lock.acquire(token="me")
    await other.acquire(token="me")
    await other.release()
    await asyncio.sleep(4.0)  # longer than the lease, and than a session outlives its last one
    assert await lock.owned()
    await lock.release()


@one_server
@pytest.mark.parametrize("carried_out", [True, False])
async def test_cancelled_as_the_callers_token_is_written(server: RedisServer, redis: Redis, carried_out: bool) -> None:
    async with FaultProxy(path=server.socket_path) as proxy, Redis(port=proxy.port) as client:
        lock = client.lock("orders", timeout=10, lock_class=RedisLock)
        (proxy.delay_next_reply if carried_out else proxy.delay_next_request)(0.3, b"job-7")
        acquiring = asyncio.ensure_future(lock.acquire(token="job-7"))
        await until(lambda: _held(redis, b"job-7" if carried_out else None))
        await cancelled(acquiring)
        await until(lambda: _free(redis))


async def _held(redis: Redis, token: bytes | None) -> bool:
    value = await redis.get("orders")
    return value is not None and (token is None or value == token)


async def test_a_cancelled_acquire_leaves_nothing(redis: Redis) -> None:
    async with redis.lock("orders", timeout=10, lock_class=RedisLock):
        waiting = asyncio.ensure_future(redis.lock("orders", lock_class=RedisLock).acquire())
        await until(lambda: _in_line(redis, 1))
        await cancelled(waiting)
    assert await redis.get("orders") is None
    for key in await redis.keys("*"):
        assert await redis.pttl(key) > 0, key


async def test_wrong_arguments() -> None:
    import redis as synchronous

    with pytest.raises(TypeError, match=r"redis\.asyncio"):
        RedisLock(synchronous.Redis(), "orders")
    lock = RedisLock(Redis(), "orders")
    with pytest.raises(ValueError, match="one word"):
        await lock.acquire(token="two words")
