"""How long an answer is waited for, and how long until a question is repeated: longer after each silence."""

import asyncio
from itertools import pairwise

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks._core.answers import REPLY_TIMEOUT
from aiolocks._core.timing import retry_delay
from aiolocks._engine.guard import guard
from aiolocks._engine.lease import Lease, state_of
from aiolocks._engine.request import Granted, Request
from tests.support.answering import SILENCE, Answering, Asked, insist, session_of
from tests.support.pipelines import pipeline_in
from tests.support.virtual import clock

TTL = 30.0


def silent_to(what: str) -> Answering:
    return Answering(lambda asked: SILENCE if asked.what == what else 1)


def patience(times: list[float], *, paused: bool) -> list[float]:
    """Return for how long each question was not answered, all *paused* after its end as they must be."""
    gaps = [later - sooner for sooner, later in pairwise(times)]
    return [round(gap - (retry_delay(TTL, at) if paused else 0), 6) for at, gap in enumerate(gaps, 1)]


async def test_patience_doubles_with_each_silence_up_to_the_longest_wait() -> None:
    async with session_of(Answering(lambda asked: 1)) as session:
        after = pipeline_in(session.context).patience_after
        assert [after(silences) for silences in range(6)] == [1, 2, 4, 8, REPLY_TIMEOUT, REPLY_TIMEOUT]
        after = pipeline_in(session.context).undo_patience_after
        assert [after(silences) for silences in range(8)] == [0.25, 0.5, 1, 2, 4, 8, REPLY_TIMEOUT, REPLY_TIMEOUT]


async def test_a_request_to_acquire_is_waited_for_longer_after_each_silence() -> None:
    server = silent_to("lock_grant")
    async with session_of(server):
        with pytest.raises(RedisTimeoutError):
            await server.asking().acquire(Lease)
        assert clock() == REPLY_TIMEOUT
        assert patience([*server.times("lock_grant"), clock()], paused=False) == [1, 2, 4, 3]


async def test_attempts_whose_links_were_cut_make_no_later_one_wait_longer() -> None:
    """P13: or a link that dies after others were cut is found out late."""
    cuts = [RedisConnectionError("cut")] * 3

    def answer(asked: Asked) -> object:
        if asked.what == "lock_grant" and cuts:
            raise cuts.pop()
        return SILENCE if asked.what == "lock_grant" else 1

    async with session_of(server := Answering(answer)):
        with pytest.raises(RedisTimeoutError):
            await server.asking().acquire(Lease)
        assert clock() == 1


async def test_an_undo_is_waited_for_longer_after_each_silence() -> None:
    server = silent_to("lock_release")
    async with session_of(server):
        lease = await server.asking().acquire(Lease)
        with pytest.raises(RedisTimeoutError):
            await lease.release()
        await asyncio.sleep(TTL)
        assert patience(server.times("lock_release"), paused=True)[:6] == [0.25, 0.5, 1, 2, 4, 8]


async def test_what_a_lease_guards_is_waited_for_longer_after_each_silence() -> None:
    server = silent_to("lock_guard")
    async with session_of(server):
        lease = await server.asking().acquire(Lease)
        with pytest.raises(RedisTimeoutError):
            await guard(state_of(lease), [("INCR", "n")])
        assert patience(server.times("lock_guard"), paused=True) == [1, 2, 4]
        assert REPLY_TIMEOUT <= clock() <= 2 * REPLY_TIMEOUT
        await lease.release()


async def test_what_is_insisted_on_is_waited_for_longer_after_each_silence() -> None:
    server = silent_to("lock_statistics")
    async with session_of(server):
        with pytest.raises(RedisTimeoutError):
            await insist(server.grantor(), until=60)
        assert patience(server.times("lock_statistics"), paused=True)[:5] == [1, 2, 4, 8, REPLY_TIMEOUT]


async def test_an_attempt_to_connect_is_given_longer_after_each_that_hung_until_one_succeeds() -> None:
    async def given(attempts: int) -> list[float]:
        server.hangs, server.tried = True, []
        for _ in range(attempts):
            with pytest.raises(RedisTimeoutError):
                await server.grantor().grant(Request(TTL, 1, wait=True))
        server.hangs = False
        return patience([*server.tried, clock()], paused=False)

    server = Answering(lambda asked: 7)
    async with session_of(server):
        assert await given(4) == [2, 4, 5, 5]
        assert isinstance(await server.grantor().grant(Request(TTL, 1, wait=True)), Granted)
        server.cut()
        await asyncio.sleep(0.1)
        assert await given(4) == [2, 4, 5, 5]
