"""What paths promise beyond the conformance table: who may be inside at which level, in what order, and the fences."""

import asyncio
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import HierarchicalLock, Lease
from tests.support.cases import the_rest_slow
from tests.support.primitives import cancelled, enter, queued, until

pytestmark = pytest.mark.usefixtures("quick_sessions")

ROOT, TABLE, ROW, SIBLING = "shop", "shop/orders", "shop/orders/42", "shop/orders/43"
ELSEWHERE = "shop/customers/1"

At = Callable[[str], HierarchicalLock]


@pytest.fixture
def at(client: Redis) -> At:
    """Makes the lock of a path."""
    return lambda path: HierarchicalLock(client, path)


async def in_another_task(acquirable: object) -> bool:
    """Return whether another task could have it at once."""

    async def attempt() -> bool:
        lease: Lease | None = await acquirable.try_acquire()  # type: ignore[attr-defined]  # either mode
        if lease is not None:
            await lease.release()
        return lease is not None

    return await asyncio.create_task(attempt())


def overlap(one: str, other: str) -> bool:
    """Say whether one path is the other, or lies above or below it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


@pytest.mark.parametrize(("held", "wanted"), list(product([ROOT, TABLE, ROW, SIBLING], repeat=2)))
async def test_a_writer_excludes_every_user_and_a_reader_every_writer_of_its_path_and_of_paths_above_or_below(
    at: At, held: str, wanted: str
) -> None:
    for mode in ("read", "write"):
        async with getattr(at(held), mode):
            free = [await in_another_task(at(wanted).read), await in_another_task(at(wanted).write)]
            locked = [await at(wanted).read.locked(), await at(wanted).write.locked()]
        excluded = [mode == "write" and overlap(held, wanted), overlap(held, wanted)]
        assert (free, locked) == ([not each for each in excluded], excluded), mode


async def test_a_waiter_for_a_table_comes_before_later_users_of_its_rows(at: At) -> None:
    order: list[str] = []

    async def use(path: str) -> None:
        async with at(path).write:
            order.append(path)

    async with at(ROW).write:
        table = asyncio.create_task(use(TABLE))
        await queued(at(TABLE).write, 1)
        row = asyncio.create_task(use(SIBLING))
        await queued(at(TABLE).write, 2)
        assert not await in_another_task(at(SIBLING).write)
    await asyncio.gather(table, row)
    assert order == [TABLE, SIBLING]


async def test_a_waiter_for_a_row_keeps_no_caller_from_its_siblings(at: At) -> None:
    async with at(ROW).write:
        waiter = asyncio.create_task(at(ROW).write.acquire())
        await queued(at(ROW).write, 1)
        assert await in_another_task(at(SIBLING).write)
    await (await waiter).release()


@pytest.mark.parametrize(("outer", "inner"), [
    (("write", ROW), ("write", ROW)), (("read", ROW), ("read", ROW)), (("read", ROW), ("write", ROW)),
    (("write", TABLE), ("read", ROW)), (("write", ROW), ("read", TABLE)), (("read", ROW), ("read", TABLE)),
    (("read", TABLE), ("write", ROW)), (("read", ROW), ("write", TABLE)), (("write", ROW), ("write", TABLE)),
])  # fmt: skip
async def test_a_task_that_might_wait_for_itself_gets_an_error_instead_of_a_deadlock(
    at: At, outer: tuple[str, str], inner: tuple[str, str]
) -> None:
    wanted = getattr(at(inner[1]), inner[0])
    async with getattr(at(outer[1]), outer[0]):
        with pytest.raises(RuntimeError, match="might wait for itself"):
            await enter(wanted)
        assert await wanted.try_acquire() is None


@pytest.mark.parametrize(("outer", "inner"), [
    (("write", ROW), ("write", SIBLING)), (("write", ROW), ("read", SIBLING)), (("read", ROW), ("read", SIBLING)),
    (("read", ROW), ("write", SIBLING)), (("read", ROW), ("write", ELSEWHERE)), (("read", TABLE), ("read", ROW)),
])  # fmt: skip
async def test_a_task_takes_a_second_path_though_a_waiter_wants_the_first(
    at: At, outer: tuple[str, str], inner: tuple[str, str]
) -> None:
    """In the queue behind them it would wait for itself."""
    async with getattr(at(outer[1]), outer[0]):
        waiters = [asyncio.create_task(at(path).write.acquire()) for path in (TABLE, ROOT)]
        await until(lambda: two_wait(at))
        await enter(getattr(at(inner[1]), inner[0]).hold(timeout=2))
        await cancelled(*waiters)


async def test_a_reader_of_a_row_that_writes_another_waits_for_the_tables_readers_not_for_the_queue(at: At) -> None:
    order: list[str] = []

    async def write_table() -> None:
        async with at(TABLE).write:
            order.append("table")

    async def read_one_write_another() -> None:
        async with at(ROW).read:
            reads.set()
            await goes_on.wait()
            async with at(SIBLING).write:
                order.append("row")

    reads, goes_on = asyncio.Event(), asyncio.Event()
    both = asyncio.create_task(read_one_write_another())
    async with asyncio.timeout(5):
        await reads.wait()
        async with at(TABLE).read:
            table = asyncio.create_task(write_table())
            await queued(at(TABLE).write, 1)
            goes_on.set()
            await queued(at(TABLE).write, 2)
            async with at(ROW).read:  # those who are waited for wait for nobody
                order.append("reader")
        await asyncio.gather(both, table)
    assert order == ["reader", "row", "table"]


async def two_wait(at: At) -> bool:
    return (await at(ROOT).read.statistics()).waiting + (await at(TABLE).read.statistics()).waiting == 2


@pytest.mark.rest
@pytest.mark.parametrize("seed", the_rest_slow(range(3), quick=1))
async def test_no_incompatible_pair_is_ever_held_together(client: Redis, seed: int) -> None:
    """A random workload on a tree against a plain model: two paths that overlap are held together only to be read."""
    chance = random.Random(seed)
    paths = ["a", *(f"a/{table}" for table in "bc"), *(f"a/{table}/{row}" for table in "bc" for row in "12")]
    held: list[tuple[str, str]] = []
    fences: list[int] = []
    together = 0

    async def work() -> None:
        nonlocal together
        for _ in range(12):
            path, mode = chance.choice(paths), chance.choice(["read", "write"])
            timeout = chance.choice([0, 0.02, None, None, None])
            try:
                async with getattr(HierarchicalLock(client, path), mode).hold(timeout=timeout) as lease:
                    clashes = [other for other in held if overlap(path, other[1]) and "write" in (mode, other[0])]
                    assert not clashes, (mode, path, clashes)
                    together = max(together, len(held) + 1)
                    fences.append(lease.fencing_token)
                    held.append((mode, path))
                    try:
                        await asyncio.sleep(chance.choice([0, 0.001, 0.005]))
                    finally:
                        held.remove((mode, path))
            except (TimeoutError, RedisTimeoutError):  # the latter: not even an answer in that time
                pass

    async with asyncio.timeout(60):
        await asyncio.gather(*(work() for _ in range(12)))
    assert together > 1
    assert len(set(fences)) == len(fences)
    for path in paths:
        now = await HierarchicalLock(client, path).read.statistics()
        assert (now.holders, now.waiting) == (0, 0)


@pytest.mark.rest
@pytest.mark.parametrize("seed", the_rest_slow(range(3), quick=1))
async def test_tasks_that_take_paths_in_one_order_never_wait_for_each_other_for_ever(client: Redis, seed: int) -> None:
    """One order: a path before those below it, these before its next neighbour."""
    chance = random.Random(seed)
    paths = ["a", *(path for table in "bc" for path in (f"a/{table}", *(f"a/{table}/{row}" for row in "123")))]
    nested = 0

    async def take(wanted: list[str], depth: int = 0) -> None:
        nonlocal nested
        if wanted:
            mode = chance.choice(["read", "read", "write"])
            try:
                async with getattr(HierarchicalLock(client, wanted[0]), mode):
                    nested = max(nested, depth + 1)
                    await asyncio.sleep(chance.choice([0, 0.001]))
                    await take(wanted[1:], depth + 1)
            except RuntimeError as refused:
                if "might wait for itself" not in str(refused):
                    raise
                await take(wanted[1:], depth)

    async def work() -> None:
        for _ in range(6):
            await take([path for path in paths if chance.random() < 0.4])

    async with asyncio.timeout(60):
        await asyncio.gather(*(work() for _ in range(8)))
    assert nested > 2


@pytest.mark.parametrize("path", ["", "/", "a/", "/a", "a//b"])
async def test_a_level_without_a_name_is_an_error_at_once(client: Redis, path: str) -> None:
    with pytest.raises(ValueError, match=r"name must be|path must be"):
        HierarchicalLock(client, path)


async def test_a_hierarchical_lock_without_a_mode_cannot_be_acquired(at: At) -> None:
    assert repr(at(ROW)) == "<HierarchicalLock 'shop/orders/42'>"
    assert repr(at(ROW).write) == "<HierarchicalLock 'shop/orders/42' write>"
    assert not any(hasattr(at(ROW), method) for method in ("acquire", "hold", "release"))
    itself: Any = at(ROW)
    with pytest.raises(TypeError, match=r"enter its \.read or \.write"):
        await enter(itself)
