"""One timer for many bounds: kept to, and not mistaken about what the loop itself was late for."""

import asyncio
import math
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aiolocks._core.overdue_timer import OverdueTimer
from tests.support.virtual import clock

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@dataclass
class PreparedScript:
    due: float


def test_what_came_while_the_loop_was_late_is_read_before_anything_is_taken_for_overdue(new_loop: NewLoop) -> None:
    """uvloop runs its timers before it looks at its sockets again."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        here.setblocking(False)
        happened: list[str] = []
        bounds = [PreparedScript(time.monotonic() + 0.05)]

        def read() -> None:
            loop.remove_reader(here)
            happened.append("read")
            bounds.clear()

        patrol = OverdueTimer(loop, time.monotonic, lambda: bounds, lambda bound: happened.append("overdue"))

        def block() -> None:
            loop.remove_reader(there)
            time.sleep(0.1)
            there.send(b"here it is")

        patrol.arm(bounds[0].due, time.monotonic())
        loop.add_reader(here, read)
        loop.add_reader(there, block)
        here.send(b"block now")
        await asyncio.sleep(0.2)
        here.close()
        there.close()
        return happened

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == ["read"]


def test_a_loop_that_is_always_late_still_finds_what_is_overdue(new_loop: NewLoop) -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        found = asyncio.Event()
        patrol = OverdueTimer(loop, time.monotonic, lambda: [PreparedScript(0.0)], lambda bound: found.set())
        patrol.arm(time.monotonic() + 0.01, time.monotonic())
        for _ in range(10):
            time.sleep(0.05)
            await asyncio.sleep(0)
        patrol.close()
        return found.is_set()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main())


class Guarded:
    def __init__(self) -> None:
        self.bounds: list[PreparedScript] = []
        self.found: list[tuple[float, float]] = []
        """When, and since when."""
        self.looks = 0
        self.patrol = OverdueTimer(asyncio.get_running_loop(), clock, self._watched, self._overdue)

    def _watched(self) -> Iterator[PreparedScript]:
        self.looks += 1
        assert self.looks < 50, "it looks on and on"
        return iter(self.bounds)

    def _overdue(self, bound: PreparedScript) -> None:
        self.found.append((clock(), bound.due))
        bound.due = math.inf

    def watch(self, due: float) -> PreparedScript:
        self.bounds.append(PreparedScript(due))
        self.patrol.arm(due, clock())
        return self.bounds[-1]


async def test_each_bound_is_found_overdue_when_its_time_has_come_and_not_before() -> None:
    guarded = Guarded()
    for due in (5.0, 2.0, 9.0, 2.0):
        guarded.watch(due)
    await asyncio.sleep(3600)
    assert guarded.found == [(2, 2), (2, 2), (5, 5), (9, 9)]
    assert guarded.looks <= 2 * 3, "once for each moment, and then for the next"


async def test_a_bound_that_is_past_already_is_found_at_once_and_one_that_was_put_off_at_its_new_time() -> None:
    guarded = Guarded()
    await asyncio.sleep(5)
    guarded.watch(4.995)
    await asyncio.sleep(0.001)
    guarded.watch(6.0).due = 7.0
    await asyncio.sleep(10)
    assert guarded.found == [(5, 4.995), (7, 7)]


async def test_nothing_is_found_after_the_end_until_there_is_a_new_bound() -> None:
    guarded = Guarded()
    guarded.watch(5.0)
    guarded.watch(2.0)
    guarded.patrol.close()
    await asyncio.sleep(10)
    assert not guarded.looks
    guarded.bounds.clear()
    guarded.watch(20.0)
    await asyncio.sleep(20)
    assert guarded.found == [(20, 20)]


class Busy:
    """A loop that fires its one timer as late as the test likes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due = 0.0
        self.overdue: list[PreparedScript] = []
        self._callback: Callable[[], None] = self.cancel
        loop: Any = self
        bound = PreparedScript(self.now + 1)
        self.patrol = OverdueTimer(loop, lambda: self.now, lambda: [bound], self.overdue.append)
        self.patrol.arm(bound.due, self.now)

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Busy":
        self.due, self._callback = self.now + delay, callback
        return self

    def cancel(self) -> None:
        pass

    def fire(self, late: float) -> None:
        self.now = self.due + late
        self._callback()


def test_only_a_look_that_is_very_late_comes_again_once_what_has_arrived_can_have_been_read() -> None:
    punctual, late = Busy(), Busy()
    punctual.fire(late=0.005)
    assert punctual.overdue
    late.fire(late=0.015)
    assert not late.overdue
    assert 0 < late.due - late.now < 0.0015
    late.fire(late=0.015)
    assert late.overdue
