"""Virtual time for promises that are kept on the server in memory: there a wait costs nothing.

A plugin, which the root conftest registers. The same promises are kept in real time on a real server.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import pytest

from aiolocks.testing import JumpingLoop

_set_up: pytest.Item | None = None
"""The test that is being set up: its loop is made next."""


def in_virtual_time(item: pytest.Item) -> bool:
    """Return whether *item* runs on a loop whose clock jumps; threads do not see that clock."""
    parameters = parameters_of(item)
    in_memory = parameters.get("url") == "memory" and parameters.get("watchdog") != "thread"
    return in_memory and item.get_closest_marker("real_time") is None


def parameters_of(item: pytest.Item) -> dict[str, Any]:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return parameters


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _set_up
    _set_up = item


@pytest.hookimpl(trylast=True)  # tests.support.loops goes first
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"by the server": _loop}


def _loop() -> asyncio.AbstractEventLoop:
    return JumpingLoop() if _set_up is not None and in_virtual_time(_set_up) else asyncio.new_event_loop()


def clock() -> float:
    return asyncio.get_running_loop().time()


def gaps(times: Iterable[float]) -> list[float]:
    return [round(later - sooner, 6) for sooner, later in pairwise(times)]
