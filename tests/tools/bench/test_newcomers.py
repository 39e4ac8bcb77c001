"""What is said to stay of names is what nobody frees: on locks whose leftovers are known."""

import contextlib
import gc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from bench.newcomers import Make, uses, what_stays

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


async def test_styles_differ_in_the_names_they_use_and_in_when_locks_are_made() -> None:
    made: list[str] = []

    class Reusable:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            pass

    def make(name: str) -> Reusable:
        made.append(name)
        return Reusable()

    styles = uses(make, 2)
    made.clear()
    names = {}
    for style, use in styles.items():
        for _ in range(2):
            assert await use(1, 0.0) == 1
        names[style] = made.copy()
        made.clear()
    assert names == {"new": ["order:0", "order:1"], "kept": [], "again": ["kept:1", "kept:1"]}
