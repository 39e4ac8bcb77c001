"""The event loop of each process that measures: asyncio's own, or uvloop."""

import asyncio
from collections.abc import Callable, Coroutine
from importlib import metadata
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")

OWN, UVLOOP = "asyncio", "uvloop"
LOOPS = (OWN, UVLOOP)


def run(loop: str, main: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does, on the loop of that name."""
    with asyncio.Runner(loop_factory=_factory(loop)) as runner:
        return runner.run(main)


def running() -> str:
    """Return the name of the running loop, for processes that the measuring process starts."""
    return UVLOOP if type(asyncio.get_running_loop()).__module__.split(".")[0] == UVLOOP else OWN


def described(loop: str) -> str:
    """Return its name, and its version where it has one of its own."""
    return OWN if loop == OWN else f"{loop} {metadata.version(loop)}"


def check_installed(loop: str) -> None:
    """Raise ValueError if the loop is not installed."""
    if loop != OWN and find_spec(loop) is None:
        raise ValueError(f"--loop {loop}: {loop} is not installed: pip install {loop}")


def _factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == OWN:
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop
