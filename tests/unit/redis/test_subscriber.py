"""The channel over which a session is told, in virtual time: since when it can be, and when it is connected anew."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks._redis.clients import Server
from aiolocks._redis.subscriber import Subscriber
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.virtual import clock, gaps

CHANNEL, OTHER = b"wake:1", b"wake:2"

PAUSES = [0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


def confirmed(asked: Asked) -> object:
    return [b"subscribe", asked.words[1], 1]


class Heard:
    def __init__(self) -> None:
        self.grants: list[tuple[bytes, int, int, bytes]] = []
        self.subscribed = self.forbidden = 0

    def on_grant(self, *notice: Any) -> None:
        self.grants.append(notice)

    def on_subscribed(self, channel: bytes) -> None:
        self.subscribed += 1

    def on_forbidden(self, error: ResponseError) -> None:
        self.forbidden += 1


@asynccontextmanager
async def wakeups_of(server: Answering, *channels: bytes, heard: Heard | None = None) -> AsyncIterator[Subscriber]:
    """Listen to *channels*, or if none are named to CHANNEL, until the end of the block."""
    heard = heard or Heard()
    hears: dict[str, Any] = {name: getattr(heard, name) for name in ("on_grant", "on_subscribed", "on_forbidden")}
    wakeups = Subscriber(Server(server), asyncio.get_running_loop(), clock, **hears)
    try:
        for channel in channels or (CHANNEL,):
            wakeups.listen(channel)
        yield wakeups
    finally:
        wakeups.close()
        await asyncio.sleep(0)  # until what reads has ended


async def test_a_subscriber_listens_while_its_subscription_is_confirmed_and_its_connection_not_lost() -> None:
    """What was handed over to others before that is no sign of a subscription that is dead."""
    server = Answering(lambda asked: Later(3, confirmed(asked)))
    async with wakeups_of(server) as wakeups:
        assert not wakeups.listening(CHANNEL, clock())
        await asyncio.sleep(2)
        assert server.times("SUBSCRIBE") == [0]
        assert not wakeups.listening(CHANNEL, clock())
        await asyncio.sleep(2)
        assert wakeups.listening(CHANNEL, clock())
        assert wakeups.listening(CHANNEL, 3.0)
        assert not wakeups.listening(CHANNEL, 2.9), "it was on its way then"
        assert not wakeups.listening(OTHER, clock())
        server.cut()
        await asyncio.sleep(2)
        assert len(server.times("SUBSCRIBE")) == 2
        for moment in (clock(), 3.5):
            assert not wakeups.listening(CHANNEL, moment)
        await asyncio.sleep(2)
        assert wakeups.listening(CHANNEL, clock())
        assert not wakeups.listening(CHANNEL, 3.5)
    assert not wakeups.listening(CHANNEL, clock())


async def test_a_subscription_that_is_not_confirmed_in_time_is_made_again_for_a_caller_that_asks_again() -> None:
    server = Answering(lambda asked: SILENCE if clock() < 1 else confirmed(asked))
    async with wakeups_of(server) as wakeups:
        await asyncio.sleep(4)
        wakeups.listen(CHANNEL)
        assert len(server.tried) == 1, "it may still be confirmed"
        await asyncio.sleep(2)
        wakeups.listen(CHANNEL)
        await asyncio.sleep(1)
        assert wakeups.listening(CHANNEL, clock())


@pytest.mark.parametrize("hurried", [False, True])
async def test_pauses_between_attempts_to_connect_grow_and_begin_again_once_it_is_confirmed(hurried: bool) -> None:
    """Else, after one long outage, a session would be deaf for a second after each short one, for good."""

    async def ten_seconds() -> None:
        for _ in range(1000):
            if hurried:
                wakeups.listen(CHANNEL)
                wakeups.listen(OTHER)
            await asyncio.sleep(0.01)

    server = Answering(confirmed)
    server.refuses = True
    async with wakeups_of(server) as wakeups:
        await ten_seconds()
        assert gaps(server.tried)[:8] == PAUSES
        server.refuses = False
        await ten_seconds()
        assert wakeups.listening(CHANNEL, clock())
        server.tried = [clock()]
        server.refuses = True
        server.cut()
        await ten_seconds()
        assert gaps(server.tried)[:8] == PAUSES


@pytest.mark.parametrize("reply", [SILENCE, [b"message", CHANNEL, b"for somebody else"]])
async def test_a_connection_alone_is_no_reason_to_begin_the_pauses_again(reply: object) -> None:
    """A server that takes each and breaks it at once would be asked as fast as it can."""
    server = Answering(lambda asked: reply)
    async with wakeups_of(server):
        for pause in PAUSES:
            await asyncio.sleep(0.001)
            tried = len(server.tried)
            server.cut()
            await asyncio.sleep(pause - 0.001)
            assert len(server.tried) == tried
            await asyncio.sleep(0.002)
            assert len(server.tried) == tried + 1


async def test_another_channel_is_subscribed_to_over_the_same_connection_and_both_over_a_new_one() -> None:
    server, heard = Answering(lambda asked: Later(3, confirmed(asked))), Heard()
    async with wakeups_of(server, heard=heard) as wakeups:
        await asyncio.sleep(20)
        wakeups.listen(OTHER)
        await asyncio.sleep(1)
        wakeups.listen(OTHER)  # it has not been on its way for long
        await asyncio.sleep(3)
        assert (server.times("SUBSCRIBE"), len(server.tried)) == ([0, 20], 1)
        assert wakeups.listening(CHANNEL, clock())
        assert wakeups.listening(OTHER, clock())
        assert heard.subscribed == 2
        wakeups.reconnect()
        await asyncio.sleep(1)
        assert set(server.asked[-1].words) == {b"SUBSCRIBE", CHANNEL, OTHER}


async def test_a_notice_is_a_grant_and_whatever_else_is_published_is_nothing() -> None:
    refused = [b"token -1 3 key", b"token -1 -1 key"]
    notices = [b"token 41 30000 {or ders}:\nkey", b"junk", b"token 41 30000 ", b"token x 30000 key", *refused]
    server, heard = Answering(confirmed), Heard()
    async with wakeups_of(server, heard=heard):
        await asyncio.sleep(1)
        for notice in notices:
            server.connections[-1].replies.put_nowait([b"message", CHANNEL, notice])
        server.connections[-1].replies.put_nowait([b"unsubscribe", CHANNEL, 1])
        await asyncio.sleep(1)
        assert heard.grants[0] == (b"token", 41, 30_000, b"{or ders}:\nkey")
        assert heard.grants[1:] == [(b"token", -1, limit, b"key") for limit in (3, -1)]
        assert (heard.subscribed, heard.forbidden) == (1, 0)


@pytest.mark.parametrize(("error", "forbidden"), [(NoPermissionError("no &*"), 1), (ResponseError("what?"), 0)])
async def test_a_subscriber_that_is_refused_does_not_try_until_asked(error: Exception, forbidden: int) -> None:
    server, heard = Answering(lambda asked: error), Heard()
    async with wakeups_of(server, heard=heard) as wakeups:
        await asyncio.sleep(10)
        assert (len(server.tried), heard.forbidden) == (1, forbidden)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "the connection is closed"
        server.answer = confirmed
        wakeups.listen(CHANNEL)
        await asyncio.sleep(1)
        assert wakeups.listening(CHANNEL, clock())


async def test_once_closed_it_is_gone_until_asked_again() -> None:
    server = Answering(confirmed)
    async with wakeups_of(server) as wakeups:
        await asyncio.sleep(1)
        wakeups.close()
        assert server.times("UNSUBSCRIBE") == [1], "the in-memory server notices no closed connection"
        assert not wakeups.listening(CHANNEL, clock())
        await asyncio.sleep(10)
        assert (len(server.tried), asyncio.all_tasks()) == (1, {asyncio.current_task()})
        wakeups.listen(CHANNEL)
        await asyncio.sleep(1)
        assert wakeups.listening(CHANNEL, clock())


async def test_closed_in_a_pause_it_tries_no_more_until_asked_and_then_at_once() -> None:
    server = Answering(confirmed)
    server.refuses = True
    async with wakeups_of(server) as wakeups:
        await asyncio.sleep(5.5)
        tried = len(server.tried)
        wakeups.close()
        await asyncio.sleep(10)
        assert len(server.tried) == tried
        wakeups.listen(CHANNEL)
        await asyncio.sleep(0)
        assert len(server.tried) == tried + 1
        await asyncio.sleep(0.1)
        wakeups.close()
        wakeups.listen(CHANNEL)
        await asyncio.sleep(0)
        assert len(server.tried) == tried + 2


async def test_a_subscriber_closed_while_it_connects_listens_for_a_caller_that_asks_right_then() -> None:
    server = Answering(confirmed)
    server.hangs = True
    async with wakeups_of(server) as wakeups:
        await asyncio.sleep(1)
        wakeups.close()
        server.hangs = False
        wakeups.listen(OTHER)
        await asyncio.sleep(1)
        assert not wakeups.listening(CHANNEL, clock())
        assert wakeups.listening(OTHER, clock())
        assert len(server.tried) == 2


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_connection_that_is_made_or_refused_after_the_end_changes_nothing(refuses: bool) -> None:
    server = Answering(confirmed)
    server.hangs = server.deaf = True
    async with wakeups_of(server) as wakeups:
        await asyncio.sleep(1)
        server.refuses = refuses
        wakeups.close()
        await asyncio.sleep(10)
        assert (len(server.tried), asyncio.all_tasks()) == (1, {asyncio.current_task()})


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_loop_that_cancels_all_tasks_is_not_asked_for_a_new_connection(hangs: bool) -> None:
    """It is about to end; if not, the next re-check asks to listen."""
    server = Answering(confirmed)
    server.hangs = hangs
    async with wakeups_of(server) as wakeups:
        await asyncio.sleep(1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # as `asyncio.run` does at its end
        await asyncio.sleep(10)
        assert len(server.tried) == 1
        server.hangs = False
        wakeups.listen(CHANNEL)
        await asyncio.sleep(1)
        assert wakeups.listening(CHANNEL, clock())


async def test_a_node_that_is_gone_is_not_tried_for_channels_without_waiters() -> None:
    """Of a Cluster: what waited there does so elsewhere now. It was tried every second for as long as the session."""
    for left_before in (True, False):
        server = Answering(lambda asked: [b"ssubscribe", asked.words[1], 1])
        async with wakeups_of(server, b"wake:{a}:1", b"wake:{b}:1") as wakeups:
            await asyncio.sleep(1)
            server.refuses = True
            if left_before:
                wakeups.leave(b"wake:{a}:1")
            server.cut()
            await asyncio.sleep(10)
            tried = len(server.tried)
            assert tried > 10, "one is still waited at"
            wakeups.leave(b"wake:{a}:1")
            wakeups.leave(b"wake:{b}:1")
            await asyncio.sleep(60)
            assert len(server.tried) <= tried + 1


async def test_of_more_than_64_channels_without_waiters_those_are_left_that_had_none_for_longest() -> None:
    channels = [b"wake:{%d}:1" % number for number in range(70)]
    server = Answering(lambda asked: [asked.what.lower().encode(), asked.words[1], 1])
    async with wakeups_of(server, *channels) as wakeups:
        await asyncio.sleep(1)
        for channel in channels:
            wakeups.leave(channel)
        await asyncio.sleep(1)
        assert [asked.words[1] for asked in server.runs("SUNSUBSCRIBE")] == channels[:6]
