"""When a loop is kept turning for a reply, and when it may sleep, by a clock and a loop that stand still."""

import asyncio
import gc
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from aiolocks import Lock
from aiolocks._engine.lease import state_of
from aiolocks._redis.busy_poll import BusyPoll
from aiolocks._redis.pipeline import PendingCall
from tests.support.inside import count_busy_turns, stay_awake_for
from tests.support.servers import RedisServer

SOON = 200e-6
LATELY = 1e-3


@dataclass
class Asked:
    sent_at: float
    receiver: Callable[..., None] | None = print


class Night:
    def __init__(self, processors: int | None = 2) -> None:
        self.now = 100.0
        self.due: list[Callable[[], None]] = []
        loop: Any = self
        self.vigil = BusyPoll(loop, lambda: self.now, processors)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> int:
        """Let the loop turn once, and return for how many callbacks it will turn again at once."""
        due, self.due = self.due, []
        for callback in due:
            callback()
        return len(self.due)

    def hear(self, took: float = SOON / 2) -> None:
        self.vigil.heard(self.now, took)

    def ask(self) -> Asked:
        asked = Asked(self.now)
        if self.now < self.vigil.soon_until:
            self.vigil.expect(cast("PendingCall", asked))
        return asked


@pytest.fixture
def night() -> Night:
    night = Night()
    night.hear()
    return night


def test_a_loop_turns_until_the_reply_has_come_and_again_for_a_later_request(night: Night) -> None:
    asked = night.ask()
    assert [night.turn(), night.turn(), night.turn()] == [1, 1, 1]
    asked.receiver = None
    assert night.turn() == 0
    night.ask().receiver = None
    assert night.turn() == 0
    night.hear()
    night.ask()
    assert night.turn() == 1


def test_a_loop_sleeps_when_the_reply_does_not_come_soon(night: Night) -> None:
    night.ask()
    night.now += 0.9 * SOON
    assert night.turn() == 1
    night.now += 0.2 * SOON
    assert night.turn() == 0


def test_a_loop_turns_for_the_newest_of_several_requests_and_once_for_all(night: Night) -> None:
    first = night.ask()
    night.now += 0.9 * SOON
    night.ask()
    first.receiver = None
    assert night.turn() == 1
    night.now += 0.9 * SOON
    assert night.turn() == 1


@pytest.mark.parametrize(
    ("took", "since", "processors"), [(None, 0, 2), (SOON, 0, 2), (SOON / 2, LATELY, 2), (SOON / 2, 0, 1)]
)
def test_a_loop_sleeps_where_no_reply_is_expected_soon(took: float | None, since: float, processors: int) -> None:
    """What is to answer may need just that one."""
    night = Night(processors)
    if took is not None:
        night.hear(took)
    night.now += since
    night.ask()
    assert not night.due


def test_each_turn_gives_way_to_others_that_want_the_processor(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the server that is to answer."""
    given_way = list[int]()
    monkeypatch.setattr(os, "sched_yield", lambda: given_way.append(1))
    night.ask()
    for turns in range(1, 4):
        night.turn()
        assert len(given_way) == turns


def stays_awake() -> bool:
    night = Night(processors=None)
    night.hear()
    night.ask()
    return bool(night.due)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot be kept to one processor here")
def test_a_loop_counts_the_processors_that_its_process_may_run_on() -> None:
    """A container may be given one of many."""
    processors = os.sched_getaffinity(0)
    assert stays_awake() == (len(processors) > 1)
    os.sched_setaffinity(0, {min(processors)})
    try:
        assert not stays_awake()
    finally:
        os.sched_setaffinity(0, processors)


def test_a_loop_sleeps_where_processors_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it cannot give way on them either."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert not stays_awake()


@pytest.mark.asyncio
@pytest.mark.redis
async def test_a_reply_awaited_awake_is_not_kept(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = count_busy_turns(monkeypatch)
    stay_awake_for(monkeypatch, 0.05)
    async with Redis.from_url(server.url) as client:
        lock = Lock(client, "hasty")
        for _ in range(100):
            async with lock:
                pass
        async with lock as lease:
            request = weakref.ref(state_of(lease).request)
        del lock, lease
        assert turns() > 0
        await asyncio.sleep(2 * 0.05)
        gc.collect()
        assert request() is None
