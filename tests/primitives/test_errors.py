"""Errors say the same wherever they go: copied, pickled, and out of another process."""

import asyncio
import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import redis as redis_sync
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, LockError
from tests.support.cases import one_by_one
from tests.support.raising import every_error, fail, take, told

SPAWN = multiprocessing.get_context("spawn")


def copied_by_pickle(protocol: int) -> Callable[[LockError], LockError]:
    def copied(error: LockError) -> LockError:
        there: LockError = pickle.loads(pickle.dumps(error, protocol))
        return there

    return copied


WAYS: dict[str, Callable[[LockError], LockError]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle {protocol}": copied_by_pickle(protocol) for protocol in (0, 2, pickle.HIGHEST_PROTOCOL)},
}

KINDS = [type(error).__name__ for error in every_error()]
every_kind = pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Processes that share nothing with this one."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        yield pool


@every_kind
@one_by_one("way", WAYS)
def test_a_copy_of_an_error_says_the_same(number: int, way: str) -> None:
    error = every_error()[number]
    error.add_note("while paying order 42")
    there = WAYS[way](error)
    assert there is not error
    assert told(there) == told(error)
    assert there.__notes__ == error.__notes__


def test_an_error_carries_what_its_maker_knew_and_the_name_by_the_word_of_redis_py() -> None:
    for error in every_error():
        assert isinstance(error, redis_sync.exceptions.LockError)
        assert (error.lock_name, error.message) == (error.name, str(error))
    *_, full, busy, lost, too_many, too_few, changed, _ = every_error()
    assert vars(full) | {"waiting": 20, "timeout": 0.0, "retry_after": None} == vars(full)
    assert vars(busy) | {"timeout": 5.0, "retry_after": 0.5} == vars(busy)
    assert vars(lost) | {"fencing_token": 42, "reason": "revoked"} == vars(lost)
    assert vars(too_many) | {"permits": 5, "limit": 3} == vars(too_many)
    assert vars(too_few) | {"outcomes": {"a:6379": "answered", "b:6379": "no answer in time"}} == vars(too_few)
    assert vars(changed) | {"expected": "a1", "actual": "b2"} == vars(changed)


@every_kind
def test_an_error_comes_out_of_another_process(pool: ProcessPoolExecutor, number: int) -> None:
    expected = every_error()[number]
    expected.add_note("seen in another process")
    with pytest.raises(LockError) as caught:
        pool.submit(fail, number).result(timeout=30)
    assert told(caught.value) == told(expected)


async def test_a_busy_lock_is_an_ordinary_error_of_a_process_pool(
    redis: Redis, redis_url: str, pool: ProcessPoolExecutor, quick_sessions: None
) -> None:
    """It broke the pool: concurrent.futures cannot tell an error that cannot be read from a process that died."""
    async with Lock(redis, "orders:42", ttl=5):
        asked = asyncio.get_running_loop().run_in_executor(pool, take, redis_url, "orders:42")
        with pytest.raises(AcquireTimeoutError) as caught:
            await asked
    assert (caught.value.name, caught.value.timeout) == ("orders:42", 0.0)
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 5
    await asyncio.get_running_loop().run_in_executor(pool, take, redis_url, "orders:42")


async def test_the_error_of_a_lost_lease_can_be_sent_on(redis: Redis, quick_sessions: None) -> None:
    lease = await Lock(redis, "orders:42", ttl=5).acquire()
    await redis.flushdb()
    assert await lease.renew() is False
    with pytest.raises(LeaseLostError) as caught:
        lease.check()
    there = pickle.loads(pickle.dumps(caught.value))
    assert (there.name, there.fencing_token) == ("orders:42", lease.fencing_token)
    assert told(there) == told(caught.value)
    assert lease.token not in repr(pickle.dumps(caught.value))
