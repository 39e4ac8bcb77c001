"""The channel over which a session is told, in virtual time: since when it can be, and when it is connected anew."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from aiolocks._request import Request
from aiolocks._session import Session
from aiolocks._wakeups import Wakeups
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.jumping import clock, jumping

CHANNEL, OTHER = b"wake:1", b"wake:2"

PAUSES = [0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


def confirmed(asked: Asked) -> object:
    return [b"subscribe", asked.words[1], 1]


@asynccontextmanager
async def wakeups_of(server: Answering) -> AsyncIterator[Wakeups]:
    wakeups = Wakeups(
        server,
        asyncio.get_running_loop(),
        clock,
        on_grant=lambda *_: None,
        on_subscribed=lambda: None,
        on_forbidden=lambda: None,
    )
    try:
        yield wakeups
    finally:
        wakeups.close()
        await asyncio.sleep(0)  # until what reads has ended


def pauses(times: list[float]) -> list[float]:
    return [round(later - sooner, 6) for sooner, later in pairwise(times)]


# Since when.


@jumping
async def test_it_listens_once_its_subscription_is_confirmed_and_not_before() -> None:
    """What was handed over to others before that is no sign of a subscription that is dead."""
    server = Answering(lambda asked: Later(3, confirmed(asked)))
    async with wakeups_of(server) as wakeups:
        assert not wakeups.listening(CHANNEL, clock())
        wakeups.listen(CHANNEL)
        await asyncio.sleep(2)
        assert server.times("SUBSCRIBE") == [0]
        assert not wakeups.listening(CHANNEL, clock())
        await asyncio.sleep(2)
        assert wakeups.listening(CHANNEL, clock())
        assert wakeups.listening(CHANNEL, 3.0)
        assert not wakeups.listening(CHANNEL, 2.9), "it was on its way then"
        assert not wakeups.listening(OTHER, clock())
    assert not wakeups.listening(CHANNEL, clock())


@jumping
async def test_it_listens_no_more_once_the_connection_is_lost_until_it_is_confirmed_anew() -> None:
    server = Answering(lambda asked: Later(3, confirmed(asked)))
    async with wakeups_of(server) as wakeups:
        wakeups.listen(CHANNEL)
        await asyncio.sleep(10)
        server.cut()
        await asyncio.sleep(2)
        assert len(server.times("SUBSCRIBE")) == 2
        assert not wakeups.listening(CHANNEL, clock())
        assert not wakeups.listening(CHANNEL, 9.0)
        await asyncio.sleep(2)
        assert wakeups.listening(CHANNEL, clock())
        assert not wakeups.listening(CHANNEL, 9.0)


@jumping
async def test_a_session_whose_subscription_is_on_its_way_does_not_turn_to_polling() -> None:
    """The server finds no subscriber, as it must; only after the confirmation does that say something."""

    def answer(asked: Asked) -> object:
        if asked.what == "lock_grant":
            return [b"queued", 1, 20_000, 0, 0, 0]
        if asked.what == "lock_recheck":
            return [0, 20_000, 0, 1, [1], 0]
        if asked.what == "PUBSUB":
            return [CHANNEL, 0]
        return Later(4.5, confirmed(asked)) if asked.what == "SUBSCRIBE" else 1

    def polls() -> bool:
        return session.polling

    server = Answering(answer)
    session, grantor = Session.of(server), server.grantor()
    waiting = grantor.grant(Request(30.0, 1, wait=True))
    try:
        await asyncio.sleep(4)
        assert len(server.times("lock_recheck")) > 2
        assert len(server.times("SUBSCRIBE")) == 1
        assert not polls()
        await asyncio.sleep(10)
        assert polls(), "by then it should have been found, and was not"
        assert not waiting.done()
    finally:
        session.close()
        await asyncio.sleep(0)


@jumping
async def test_a_subscription_that_is_not_confirmed_in_time_is_made_anew_for_who_asks_again() -> None:
    server = Answering(lambda asked: SILENCE if clock() < 1 else confirmed(asked))
    async with wakeups_of(server) as wakeups:
        wakeups.listen(CHANNEL)
        await asyncio.sleep(4)
        wakeups.listen(CHANNEL)
        assert len(server.tried) == 1, "it may still be confirmed"
        await asyncio.sleep(2)
        wakeups.listen(CHANNEL)
        await asyncio.sleep(1)
        assert wakeups.listening(CHANNEL, clock())


# When it connects.


@jumping
async def test_pauses_between_attempts_to_connect_grow_to_a_second() -> None:
    server = Answering(confirmed)
    server.refuses = True
    async with wakeups_of(server) as wakeups:
        wakeups.listen(CHANNEL)
        await asyncio.sleep(10)
        assert pauses(server.tried)[:8] == PAUSES


@jumping
async def test_after_a_confirmed_subscription_the_pauses_begin_anew() -> None:
    """Else who has been through one long outage would be deaf for a second after each short one, for good."""
    server = Answering(confirmed)
    server.refuses = True
    async with wakeups_of(server) as wakeups:
        wakeups.listen(CHANNEL)
        await asyncio.sleep(10)
        server.refuses = False
        await asyncio.sleep(10)
        assert wakeups.listening(CHANNEL, clock())
        server.tried = [clock()]
        server.refuses = True
        server.cut()
        await asyncio.sleep(10)
        assert pauses(server.tried)[:8] == PAUSES


@pytest.mark.parametrize("reply", [SILENCE, [b"message", CHANNEL, b"for somebody else"]])
@jumping
async def test_a_connection_alone_is_no_reason_to_begin_anew(reply: object) -> None:
    """A server that takes each and breaks it at once would be asked as fast as it can."""
    server = Answering(lambda asked: reply)
    async with wakeups_of(server) as wakeups:
        wakeups.listen(CHANNEL)
        for pause in PAUSES:
            await asyncio.sleep(0.001)
            tried = len(server.tried)
            server.cut()
            await asyncio.sleep(pause - 0.001)
            assert len(server.tried) == tried
            await asyncio.sleep(0.002)
            assert len(server.tried) == tried + 1
