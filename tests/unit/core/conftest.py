"""Asynchronous tests of this folder run in virtual time, unless they are marked for a real loop."""

import asyncio
import inspect
from collections.abc import Callable

import pytest

from tests.support.jumping import jumping
from tests.support.loops import uvloop


def pytest_itemcollected(item: pytest.Item) -> None:
    real = item.get_closest_marker("asyncio") is not None
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj) and not real:
        item.obj = jumping(item.obj)


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a real loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
        return uvloop
    return asyncio.new_event_loop
