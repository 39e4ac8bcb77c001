"""However many wait, hold or have died: each script does a part and says so, and all of them get their turn at once.

No re-check runs in these tests: what one script has no time for, the next must do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import HierarchicalLock, Lock, MultiLock, RLock, RWLock, Semaphore
from tests.support.clients import CHOSEN
from tests.support.clusters import nodes
from tests.support.inside import session_id, stop_rechecks
from tests.support.kinds import complete
from tests.support.primitives import enter, queued, rows_where, until
from tests.support.servers import RedisServer

pytestmark = pytest.mark.usefixtures("quick_sessions", "no_rechecks")

MANY = 170
"""More than three scripts hand over to."""

DEAD = 1_200
"""More than two scripts drop."""

KINDS: dict[str, Callable[[Redis], Any]] = complete({
    "lock": lambda client: Lock(client, "a"), "rlock": lambda client: RLock(client, "a"),
    "semaphore": lambda client: Semaphore(client, "a", 2), "read lock": lambda client: RWLock(client, "a").read,
    "write lock": lambda client: RWLock(client, "a").write, "multilock": lambda client: MultiLock(client, ["a"]),
    "row of a table": lambda client: HierarchicalLock(client, "a").write,
}, rows_where(lambda kind: kind.queued))  # fmt: skip


def base(kind: str) -> str:
    """Return with what the keys of that name begin."""
    return f"aiolocks:{rows_where()[kind].kind.key_word}:{{a}}"


@pytest.fixture
def no_rechecks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no re-check run."""
    stop_rechecks(monkeypatch)


async def _all_inside(
    blocks: Sequence[AbstractAsyncContextManager[object]], then: Callable[[], Awaitable[object]]
) -> None:
    """Have all *blocks* wait, do *then*, and see all of them open at one time."""
    inside = 0
    everybody = asyncio.Event()

    async def visit(block: AbstractAsyncContextManager[object]) -> None:
        nonlocal inside
        async with block:
            inside += 1
            if inside == len(blocks):
                everybody.set()
            await everybody.wait()

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for block in blocks:
            tasks.create_task(visit(block))
        await then()


@pytest.mark.rest
async def test_all_readers_come_in_when_a_writer_leaves(client: Redis) -> None:
    page = RWLock(client, "page")
    writer = await page.write.acquire()

    async def leave() -> None:
        await queued(page.read, MANY)
        await writer.release()

    await _all_inside([page.read.hold() for _ in range(MANY)], leave)


@pytest.mark.rest
async def test_all_waiters_come_in_when_a_limit_grows(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 1)
    async with semaphore:

        async def grow() -> None:
            await queued(semaphore, MANY)
            await semaphore.resize(MANY + 1)

        holds = [Semaphore(client, "scraper", 1).hold() for _ in range(MANY)]
        await asyncio.create_task(_all_inside(holds, grow))


@pytest.mark.rest
async def test_all_waiters_of_another_process_come_in(client: Redis, stranger: Redis, server: RedisServer) -> None:
    """They are told by notices; and the releasing session goes on for them, though none of its own waits."""
    page = RWLock(stranger, "page").read
    writer = await RWLock(client, "page").write.acquire()

    async def listens() -> bool:
        """Who is not subscribed yet when its turn comes is passed over, until the re-check that follows."""
        session = session_id(stranger)
        if CHOSEN == "cluster":
            return any(_channels(node, session) for node in nodes(server))
        channels = await client.pubsub_numsub(f"aiolocks:wake:{session}")
        return bool(channels[0][1] == 1)

    async def leave() -> None:
        await queued(page, MANY)
        await until(listens)
        await writer.release()

    await _all_inside([page.hold() for _ in range(MANY)], leave)


def _channels(node: RedisServer, session: str) -> list[bytes]:
    """Return the channels at a node of a Cluster on which *session* is told."""
    operator: Any = node.operator
    try:
        return list(operator.pubsub_shardchannels(f"*{session}"))
    except ResponseError:  # Redis 6.2 has none for one shard alone
        return list(operator.pubsub_channels(f"*{session}"))


@pytest.mark.rest
@pytest.mark.parametrize("timeout", [0, None], ids=["one attempt", "waiting"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_free_behind_many_dead_sessions_is_had(client: Redis, kind: str, timeout: float | None) -> None:
    """W7: they must not make one attempt fail."""
    free = KINDS[kind](client)
    await enter(free)
    await client.zadd(f"{base(kind)}:queue", {f"dead{number}": number + 1 for number in range(DEAD)})
    async with asyncio.timeout(10), free.hold(timeout=timeout):
        pass


@pytest.mark.parametrize("timeout", [0, None], ids=["one attempt", "waiting"])
async def test_permits_of_any_number_of_dead_holders_can_be_had_at_once(client: Redis, timeout: float | None) -> None:
    semaphore = Semaphore(client, "a", DEAD)
    await enter(semaphore)
    key = base("semaphore")
    await client.zadd(key, {f"{number:032}": number + 1 for number in range(DEAD)})
    await client.hset(f"{key}:meta", mapping={f"{number:032}": f"1 {number + 1}" for number in range(DEAD)})
    async with asyncio.timeout(10), semaphore.hold(permits=DEAD, timeout=timeout):
        assert (await semaphore.statistics()).permits == DEAD
