"""The kinds of real loops that some tests of this folder need."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.loops import uvloop


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a real loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
        return uvloop
    return asyncio.new_event_loop
