"""W13: a lease that must outlive its server is had only when enough replicas have it."""

import asyncio
import time
from collections.abc import Awaitable

from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lease, Lock, Semaphore
from tests.simulation.planting import always, instead, never
from tests.simulation.rules.table import clause
from tests.support.replicas import Replicated

TTL = 2.0

_NOT_ASKED = never("W13-asked")
_NOT_COUNTED = never("W13-counted")


def _made(client: AsyncRedis, kind: str, name: str, replicas: int, ttl: float = TTL) -> Lock | Semaphore:
    if kind == "lock":
        return Lock(client, name, replicas=replicas, ttl=ttl)
    return Semaphore(client, name, 1, replicas=replicas, ttl=ttl)


async def _outcome(acquired: Awaitable[Lease | None]) -> str:
    """Return "held", or how many replicas had it; nothing stays held."""
    try:
        lease = await acquired
    except RedisTimeoutError as error:
        return str(error).split(": ")[1]
    assert lease is not None
    await lease.release()
    return "held"


@clause("W13", _NOT_ASKED, _NOT_COUNTED)
def what_no_replica_has_is_not_had(replicated: Replicated, kind: str) -> None:
    """W13: the acquire is undone and raises, here since the replica stands still."""

    async def main() -> None:
        async with AsyncRedis.from_url(replicated.primary.url) as client:
            wanted = _made(client, kind, "a", 1)
            with replicated.standing_still():
                assert await _outcome(wanted.acquire()) == "0 of 1 replicas had it within 0.5 s"
                assert await _outcome(wanted.try_acquire()) == "0 of 1 replicas had it within 0.5 s"
                assert (await wanted.statistics()).holders == 0
            assert await _outcome(wanted.acquire()) == "held"

    asyncio.run(main())


@clause("W13", _NOT_ASKED)
def a_hand_over_that_no_replica_has_is_not_had(replicated: Replicated, kind: str) -> None:
    """W13: it was written by whoever let go, over another connection, and without waiting for anybody."""

    async def main() -> None:
        url = replicated.primary.url
        async with AsyncRedis.from_url(url) as client, AsyncRedis.from_url(url) as other:
            holding = await _made(other, kind, "a", 0).acquire()
            waiting = asyncio.create_task(_outcome(_made(client, kind, "a", 1).acquire()))
            while (await _made(other, kind, "a", 0).statistics()).waiting == 0:
                await asyncio.sleep(0.01)
            with replicated.standing_still():
                await holding.release()
                assert await waiting == "0 of 1 replicas had it within 0.5 s"

    asyncio.run(main())


@clause("W13", always("W13-together"))
def a_crowd_waits_for_its_replicas_together(replicated: Replicated, kind: str) -> None:
    """W13: as a WAIT blocks its connection, one for each would take as long again."""

    async def main() -> float:
        async with AsyncRedis.from_url(replicated.primary.url) as client:
            names = [f"crowd {number}" for number in range(32)]
            with replicated.standing_still():
                begun = time.monotonic()
                outcomes = await asyncio.gather(*(_outcome(_made(client, kind, name, 1).acquire()) for name in names))
                took = time.monotonic() - begun
            assert set(outcomes) == {"0 of 1 replicas had it within 0.5 s"}
            return took

    assert asyncio.run(main()) < 2.5


@clause("W13", instead("W13-slice", "slice_ms = 9_000"))
def nobody_is_held_up_by_who_waits_for_more_replicas(replicated: Replicated, kind: str) -> None:
    """W13: nor by who waits for longer, as they share the connection that a WAIT blocks."""

    async def main() -> float:
        async with AsyncRedis.from_url(replicated.primary.url) as client:
            too_many = asyncio.create_task(_outcome(_made(client, kind, "too many", 2, ttl=30).acquire()))
            async with asyncio.timeout(5):
                while (await _made(client, kind, "too many", 0).statistics()).holders == 0:
                    await asyncio.sleep(0.01)
            begun = time.monotonic()
            assert await _outcome(_made(client, kind, "a", 1).acquire()) == "held"
            took = time.monotonic() - begun
            assert await too_many == "1 of 2 replicas had it within 1 s"
            return took

    assert asyncio.run(main()) < 0.6
