"""What is said to stay of names is what nobody frees: on locks whose leftovers are known."""

import contextlib
import gc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from bench.newcomers import Make, what_stays

pytestmark = [pytest.mark.asyncio, pytest.mark.rest]


@contextlib.asynccontextmanager
async def clean(_: str) -> AsyncIterator[None]:
    yield


async def objects_that_stay(make: Make) -> int:
    run = await what_stays(make, tasks=10, names=1_000)
    assert gc.isenabled()
    return round(run.figures["objects_each"])


async def test_nothing_stays_of_a_clean_lock() -> None:
    assert await objects_that_stay(clean) == 0


async def test_what_is_kept_for_each_name_is_counted() -> None:
    kept: dict[str, list[str]] = {}

    def make(name: str) -> AbstractAsyncContextManager[Any]:
        kept[name] = [name]
        return clean(name)

    assert await objects_that_stay(make) == 1


async def test_what_only_the_collector_would_free_is_counted() -> None:
    def make(name: str) -> AbstractAsyncContextManager[Any]:
        cycle: list[Any] = []
        cycle.append(cycle)
        return clean(name)

    assert await objects_that_stay(make) == 1
