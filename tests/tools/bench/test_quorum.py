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


async def test_an_attempt_that_never_ends_is_given_up_and_counted() -> None:
    met = await acquire_until(lambda name: Turn(never, released), time.perf_counter(), 0.01)
    assert (met.acquired, len(met.acquire_ms)) == (0, 1)
    assert met.acquire_ms[0] >= 10
    assert met.trouble == {"acquisitions given up after 0.01 s": 1}


async def test_a_release_that_never_ends_leaves_an_acquisition_but_no_pair() -> None:
    met = await acquire_until(lambda name: Turn(granted, never_released), time.perf_counter(), 0.01)
    assert (met.acquired, met.pairs) == (1, 0)
    assert met.trouble == {"releases given up after 0.01 s": 1}


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
