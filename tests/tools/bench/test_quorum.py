"""What the benchmark of a quorum does about attempts that fail or never end: it counts them, and goes on."""

import asyncio
import math
import time

import pytest

from bench.peers import Turn
from bench.scenarios.quorum import acquire_until

pytestmark = [pytest.mark.asyncio, pytest.mark.rest]


async def granted() -> str:
    return "held"


async def refused() -> bool:
    return False


async def unreachable() -> str:
    raise ConnectionError


async def never() -> None:
    await asyncio.Event().wait()


async def released(_: object) -> None:
    pass


async def never_released(_: object) -> None:
    await never()


@pytest.mark.parametrize(
    ("turn", "acquired", "given_up"),
    [(Turn(never, released), 0, "acquisitions"), (Turn(granted, never_released), 1, "releases")],
)
async def test_what_never_ends_is_given_up_and_counted_and_no_pair(turn: Turn, acquired: int, given_up: str) -> None:
    met = await acquire_until(lambda name: turn, time.perf_counter(), 0.01)
    assert (met.acquired, met.pairs, len(met.acquire_ms)) == (acquired, 0, 1)
    assert acquired or met.acquire_ms[0] >= 10
    assert met.trouble == {f"{given_up} given up after 0.01 s": 1}


async def test_after_each_failure_another_name_is_tried_as_a_lost_lease_may_hold_the_last() -> None:
    names: list[str] = []
    outcomes, reached = iter((refused, unreachable)), asyncio.Event()

    async def granted_at_last() -> None:
        reached.set()
        await never()

    def lock(name: str) -> Turn:
        names.append(name)
        return Turn(next(outcomes, granted_at_last), released)

    attempts = asyncio.create_task(acquire_until(lock, math.inf, 10))
    await asyncio.wait_for(reached.wait(), 10)
    attempts.cancel()
    await asyncio.wait([attempts])
    assert len(set(names)) == 3
