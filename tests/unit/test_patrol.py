"""One timer for many bounds: kept to, and not mistaken about what the loop itself was late for."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from aiolocks._patrol import Patrol
from tests.support.loops import uvloop as uvloops


@dataclass
class Bound:
    due: float


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
        return uvloops
    return asyncio.new_event_loop


def test_what_came_while_the_loop_was_late_is_read_before_anything_is_taken_for_overdue(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """uvloop runs its timers before it looks at its sockets again."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        here.setblocking(False)
        happened: list[str] = []
        bounds = [Bound(time.monotonic() + 0.05)]

        def read() -> None:
            loop.remove_reader(here)
            happened.append("read")
            bounds.clear()

        patrol = Patrol(loop, time.monotonic, lambda: bounds, lambda bound: happened.append("overdue"))

        def block() -> None:
            loop.remove_reader(there)
            time.sleep(0.1)
            there.send(b"here it is")

        patrol.expect(bounds[0].due, time.monotonic())
        loop.add_reader(here, read)
        loop.add_reader(there, block)
        here.send(b"block now")
        await asyncio.sleep(0.2)
        here.close()
        there.close()
        return happened

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == ["read"]


def test_a_loop_that_is_always_late_still_finds_what_is_overdue(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        found = asyncio.Event()
        patrol = Patrol(loop, time.monotonic, lambda: [Bound(0.0)], lambda bound: found.set())
        patrol.expect(time.monotonic() + 0.01, time.monotonic())
        for _ in range(10):
            time.sleep(0.05)
            await asyncio.sleep(0)
        patrol.close()
        return found.is_set()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main())
