"""What undoes a request or lease, in virtual time: how long it is tried, and what it says of how that went."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks._core.timing import retry_delay
from aiolocks._engine.release import Release
from aiolocks._engine.request import Request
from aiolocks._grantors.session import Session
from aiolocks.testing import After, ScriptedGrantor
from tests.support.answering import Answering
from tests.support.virtual import clock, gaps

TTL = 30.0

GONE = ConnectionError("gone")


@asynccontextmanager
async def undoing(*answers: "bool | Exception | After") -> AsyncIterator[tuple[ScriptedGrantor, Request]]:
    """Have who answers undos so, and a request that was granted at 100."""
    await asyncio.sleep(100)
    grantor = ScriptedGrantor(withdrawals=answers)
    request = Request(TTL, 1, wait=True)
    request.was_reached()
    try:
        yield grantor, request
    finally:
        grantor.session.close()
        await asyncio.sleep(0)


def begin(grantor: ScriptedGrantor, request: Request, until: float = 130, told: list[Release] | None = None) -> Release:
    return grantor.context.undos.begin(grantor, request, until, None if told is None else told.append)


async def over(release: Release) -> None:
    await release.wait(math.inf)


async def on_its_way(grantor: ScriptedGrantor, request: Request) -> None:
    """Ask for it, and hear nothing for the time being."""
    asking = grantor.grant(request)
    asking.send(None)
    asking.close()
    assert request.unanswered


@pytest.mark.parametrize("ended", [True, False])
async def test_it_is_done_with_the_first_answer_and_says_what_that_was(ended: bool) -> None:
    told: list[Release] = []
    async with undoing(After(2, ended)) as (grantor, request):
        release = begin(grantor, request, told=told)
        assert grantor.context.undos.under_way == {request.token: release}
        with pytest.raises(RedisTimeoutError, match="not confirmed it in time"):
            release.outcome()
        await over(release)
        assert (release.done, release.outcome(), release.trouble, told) == (True, ended, None, [release])
        assert not grantor.context.undos.under_way
        await over(release)
        await release.wait(200)
        assert clock() == 102, "it is done"
        await asyncio.sleep(100)
        assert grantor.times("withdraw") == [100]


@pytest.mark.parametrize(("ended", "outcome"), [(True, True), (False, None)])
async def test_nothing_there_after_a_lost_answer_leaves_open_what_ended_it(ended: bool, outcome: bool | None) -> None:
    async with undoing(GONE, ended) as (grantor, request):
        release = begin(grantor, request)
        await over(release)
        assert release.outcome() is outcome
        assert release.trouble is None


async def test_a_release_is_tried_again_with_pauses_that_grow_until_it_is_pointless() -> None:
    told: list[Release] = []
    async with undoing(GONE) as (grantor, request):
        release = begin(grantor, request, 110, told)
        await asyncio.sleep(5)
        with pytest.raises(ConnectionError, match="gone"):
            release.outcome()
        assert not release.done
        assert not told
        with grantor.context.in_use():  # so that it goes on
            await asyncio.sleep(100)
        times = grantor.times("withdraw")
        pauses = gaps(times)
        assert pauses == [round(retry_delay(TTL, at), 6) for at in range(1, len(times))]
        assert 110 - retry_delay(TTL, len(times)) <= times[-1] < 110
        assert told == [release]
        assert release.trouble is GONE
        assert not grantor.context.undos.under_way


@pytest.mark.parametrize("callers", ["abc", "bc"])
async def test_all_callers_that_asked_for_a_release_are_called_once_and_in_order(callers: str) -> None:
    told: list[str] = []
    async with undoing(After(1, True)) as (grantor, request):
        begins = "a" in callers
        release = grantor.context.undos.begin(grantor, request, 130, (lambda _: told.append("a")) if begins else None)
        release.add_callback(lambda _: told.append("b"))
        release.add_callback(lambda _: told.append("c"))
        await asyncio.sleep(2)
        assert told == list(callers)
        release.finish(None)
        assert told == list(callers)
        assert release.ended is True


@pytest.mark.parametrize(("until", "at_most"), [(30, 3), (4, 20)])
async def test_a_caller_waits_until_a_release_is_pointless_or_takes_too_long(until: float, at_most: float) -> None:
    async with undoing(After(1000, True)) as (grantor, request):
        release = grantor.context.undos.begin(grantor, request, 100 + until, None, at_most)
        with grantor.context.in_use():  # so that it goes on
            assert release.waited is not None
            await release.waited
        assert not release.done
        assert clock() == 100 + min(until, at_most)


async def test_of_several_that_are_waited_for_each_is_waited_for_as_long_as_its_own() -> None:
    over: dict[str, float] = {}
    async with undoing(After(1000, True)) as (grantor, request):

        async def wait(name: str, until: float, *, first: Request) -> None:
            await begin(grantor, first, 200).wait(until)
            over[name] = clock()

        asking = [
            wait("long", 120, first=request),
            wait("short", 105, first=Request(TTL, 1, wait=True)),
            wait("longer", 125, first=Request(TTL, 1, wait=True)),
        ]
        begin(grantor, Request(TTL, 1, wait=True), 200)  # for which nobody waits
        await asyncio.gather(*asking)
        assert over == {"short": 105, "long": 120, "longer": 125}


async def test_cancelling_a_caller_that_waits_leaves_the_release_going_on() -> None:
    async with undoing(GONE, After(3, True)) as (grantor, request):
        release = begin(grantor, request)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await over(release)
        await over(release)
        assert release.outcome() is True
        assert clock() == pytest.approx(103 + retry_delay(TTL, 1))


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_several_callers_wait_for_one_release_for_the_shortest_time_and_cancel_no_other(cancelled: int) -> None:
    for done_after, ends in ((3, 3), (1000, 10)):
        async with undoing(After(done_after, True)) as (grantor, request):
            begun, release = clock(), begin(grantor, request, clock() + 100)
            waits = [asyncio.shield(release.wait(begun + seconds)) for seconds in (10, 10, 20)]
            await asyncio.sleep(1)
            waits.pop(cancelled).cancel()
            await asyncio.wait_for(asyncio.gather(*waits), 50)
            assert clock() == begun + ends


@pytest.mark.parametrize(("pointless", "request_is", "ends"), [
    (150, "answered", 150), (160, "on its way", 130), (105, "on its way", 105), (160, "answered later", 150),
    (125, "answered later", 125),
])  # fmt: skip
async def test_an_undo_keeps_its_session_while_it_matters(pointless: float, request_is: str, ends: float) -> None:
    async with undoing(After(1000, True)) as (grantor, request):
        if request_is != "answered":
            await on_its_way(grantor, request)
        release = begin(grantor, request, pointless)
        if request_is == "answered later":
            request.unanswered = ()
            assert release.keeps_session(min(120, ends - 0.1))
        elif request_is == "answered":
            assert release.keeps_session(101)
        assert release.keeps_session(ends - 0.1)
        assert not release.keeps_session(ends + 0.1)


async def test_a_session_that_ends_calls_the_waiting_callers_and_tries_no_release_any_more() -> None:
    told: list[Release] = []
    async with undoing(After(1, GONE)) as (grantor, request):
        release = begin(grantor, request, told=told)
        waiting = release.wait(math.inf)
        await asyncio.sleep(0.5)
        grantor.session.close()
        await asyncio.sleep(0)
        assert waiting.done()
        assert told == [release]
        with pytest.raises(RedisConnectionError, match="the session has ended"):
            release.outcome()
        await asyncio.sleep(100)
        assert (grantor.times("withdraw"), told) == ([100], [release])
        assert "the session has ended" in str(release.trouble), "an answer that comes later changes nothing"


async def test_what_waits_to_be_tried_again_as_the_session_ends_is_not() -> None:
    async with undoing(GONE) as (grantor, request):
        release = begin(grantor, request)
        await asyncio.sleep(5)
        tried = len(grantor.asked)
        grantor.session.close()
        assert release.trouble is GONE, "which says more"
        await asyncio.sleep(100)
        assert len(grantor.asked) == tried


async def test_what_begins_after_the_session_has_ended_asks_nothing_and_says_why() -> None:
    told: list[Release] = []
    async with undoing(True) as (grantor, request):
        grantor.session.close()
        release = begin(grantor, request, told=told)
        assert release.done
        assert told == [release]
        with pytest.raises(RedisConnectionError, match="the session has ended"):
            release.outcome()
        await over(release)
        assert not grantor.asked
        assert not grantor.context.undos.under_way


def test_what_begins_after_its_loop_was_closed_asks_nothing_and_says_why() -> None:
    loop = asyncio.new_event_loop()

    async def session() -> Session:
        return Session.of(Answering(lambda asked: 1))

    left = loop.run_until_complete(session())
    loop.close()

    async def main() -> None:
        grantor = ScriptedGrantor(session=left)
        release = Release(left.context.undos, grantor, Request(TTL, 1, wait=True), clock() + TTL)
        with pytest.raises(RedisConnectionError, match="the session has ended"):
            release.outcome()
        assert not grantor.asked

    asyncio.run(main())


async def test_what_waits_to_be_tried_again_is_tried_before_anything_else_is_asked_about_its_name() -> None:
    """W24: it would find its own lease in the way."""
    async with undoing(GONE, GONE, True) as (grantor, request):
        undos = grantor.context.undos
        release = begin(grantor, request)
        await asyncio.sleep(0.001)
        assert list(undos.pausing) == [(grantor.kind, grantor.name)]
        undos.retry_paused(grantor.kind, "another name")
        assert len(grantor.asked) == 1
        undos.retry_paused(grantor.kind, grantor.name)
        await asyncio.sleep(0.001)
        assert len(grantor.asked) == 2
        assert undos.pausing, "it failed again, and waits for its time"
        undos.retry_all_paused()
        await over(release)
        assert not undos.pausing
        await asyncio.sleep(5)
        assert len(grantor.asked) == 3, "the pauses before were ended"


async def test_being_tried_early_makes_no_pause_longer() -> None:
    async with undoing(*[GONE] * 100) as (grantor, request):
        release = begin(grantor, request)
        for _ in range(50):
            await asyncio.sleep(0.0001)
            grantor.context.undos.retry_all_paused()
        await asyncio.sleep(0.0001)
        first = len(grantor.asked)
        assert first == 51
        await asyncio.sleep(retry_delay(TTL, 1))
        assert len(grantor.asked) == first + 1
        assert not release.done
