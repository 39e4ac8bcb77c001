"""The way back from polling, in virtual time: when a session tries to be told of its turns again, and when it is."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks._engine.request import Request
from aiolocks._grantors.session import Session
from aiolocks.events import Event
from tests.support.answering import SILENCE, Answering, Asked, Later, session_of
from tests.support.heard import hearing
from tests.support.virtual import clock

LOOK = 0.26
"""Seconds between two looks of a session that polls; it tries at a look."""


class Hub(Answering):
    """A server that is held by another for hours; it *allows* to subscribe, and *finds* so many subscriptions."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.allows = True
        self.finds: object = 1
        self.counts_in = 0.0

    def _answer(self, asked: Asked) -> object:
        found = self.finds if isinstance(self.finds, int) and self.allows else 0
        match asked.what:
            case "lock_grant":
                return [b"queued", 1, 3_600_000, 0, found, 0]
            case "lock_recheck":
                return [found, 3_600_000, 0, 0 if found else 1, [1] * (len(asked.arguments) - 1), 0]
            case "SUBSCRIBE":
                return [b"subscribe", asked.words[1], 1] if self.allows else NoPermissionError("NOPERM no &*")
            case "PUBSUB":
                counted = [asked.words[2], self.finds] if isinstance(self.finds, int) else self.finds
                return Later(self.counts_in, counted) if counted is not SILENCE else SILENCE
            case _:
                return 1

    def polled(self, since: float = 0.0) -> bool:
        """Return whether the newest re-check *since* then came from a session that polls."""
        [*_, newest] = (asked for asked in self.asked if asked.what == "lock_recheck" and asked.at >= since)
        return any(word.startswith(b"poll") for word in newest.words)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@asynccontextmanager
async def waiting(hub: Hub) -> AsyncIterator[Session]:
    async with session_of(hub) as session:
        asked = hub.grantor().grant(Request(30.0, 1, wait=True))
        yield session
        assert not asked.done()


def began(hub: Hub) -> float:
    return next(asked.at for asked in hub.asked if any(word.startswith(b"poll") for word in asked.words))


def assert_tried_after(hub: Hub, pauses: list[float], since: float = 0.0) -> None:
    """Check for how long after *since*, and then after each try, there was no other."""
    times = [since, *(at for at in hub.times("SUBSCRIBE") if at > since)]
    tried = [later - sooner for sooner, later in pairwise(times)][: len(pauses)]
    assert len(tried) == len(pauses), tried
    assert all(pause - 0.001 <= took <= pause + LOOK for took, pause in zip(tried, pauses, strict=True)), tried


@pytest.mark.parametrize(("allows", "finds", "pauses"), [
    (False, 1, [1, 2, 4, 8, 16, 32, 60]), (True, 0, [1, 2, 4, 4, 4]),
    (True, NoPermissionError("NOPERM no pubsub"), [1, 2, 4, 8, 16, 32, 60]),
], ids=["without rights", "not found where the keys are", "without the right to ask that"])  # fmt: skip
async def test_it_tries_after_a_second_and_then_half_as_often(
    hub: Hub, allows: bool, finds: object, pauses: list[float]
) -> None:
    """Up to once a minute; or every four seconds what may have moved to where the keys are at any moment."""
    hub.allows, hub.finds = allows, finds
    async with waiting(hub):
        await asyncio.sleep(130)
        assert_tried_after(hub, pauses, since=began(hub))
        assert hub.polled()


async def test_a_polling_session_is_notified_once_its_subscription_is_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiolocks")
    hub = Hub()
    hub.finds = 0
    async with waiting(hub) as session:
        await asyncio.sleep(4)
        assert hub.polled()
        assert "tried again in 1 s" in caplog.text
        hub.finds = 1
        await asyncio.sleep(6)
        assert not hub.polled()
        assert "woken again" in caplog.text
        assert session.servers.wakeups[0].subscriber.listening(hub.grantor().channel(), clock())
        assert len(caplog.messages) == 2


async def test_a_session_that_polls_emits_an_event_with_the_seconds_until_it_subscribes_again(hub: Hub) -> None:
    hub.allows = False
    with hearing() as heard:
        async with waiting(hub):
            await asyncio.sleep(130)
    assert list(heard) == [Event("polling", "", "", 1.0)]


@pytest.mark.parametrize("trouble", [ResponseError("unknown command"), None])
async def test_an_answer_that_says_nothing_counts_as_not_found(hub: Hub, trouble: Exception | None) -> None:
    hub.finds = 0
    async with waiting(hub) as session:
        await asyncio.sleep(4)
        hub.finds = trouble or SILENCE
        await asyncio.sleep(10)
        assert_tried_after(hub, [4, 4], since=hub.times("SUBSCRIBE")[-3])
        assert hub.polled()
        hub.finds = 1
        await asyncio.sleep(10)
        assert not hub.polled()
        assert not session.servers.wakeups[0].polling


async def test_what_breaks_again_soon_is_tried_less_often_and_what_held_for_a_while_is_not(hub: Hub) -> None:
    hub.finds = 0
    async with waiting(hub):
        for held, pause in ((1.0, 4), (8.0, 1)):
            await asyncio.sleep(8)
            assert hub.polled()
            hub.finds = 1
            while hub.polled():
                await asyncio.sleep(0.1)
            await asyncio.sleep(held)
            assert not hub.polled()
            broken = clock()
            hub.finds = 0
            while not hub.polled():
                await asyncio.sleep(0.01)
            assert clock() - broken < 3
            since = clock()
            await asyncio.sleep(6)
            assert_tried_after(hub, [pause], since=since - 0.01)


async def test_a_session_that_asked_twice_is_notified_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aiolocks")
    hub = Hub()
    hub.allows = False
    async with waiting(hub):
        await asyncio.sleep(0.5)
        hub.allows, hub.counts_in = True, 0.2
        while not hub.times("PUBSUB"):
            await asyncio.sleep(0.01)
        hub.connections[-1].replies.put_nowait(RedisConnectionError("cut"))
        await asyncio.sleep(0.1)
        assert len(hub.times("PUBSUB")) == 2
        await asyncio.sleep(2)
        assert not hub.polled()
        assert caplog.text.count("woken again") == 1
