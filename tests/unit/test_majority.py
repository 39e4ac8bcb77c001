"""A vote repeated in virtual time: for how long too few may answer, and since when that counts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import ResponseError

from aiolocks import QuorumError
from aiolocks._keys import Keys
from aiolocks._majority import Majority
from aiolocks._request import Granted, Request
from aiolocks._session import Session
from tests.support.answering import Answering, Asked
from tests.support.jumping import clock, jumping

TTL = 2.0
LONGEST_PAUSE = 0.3
"""Seconds between two attempts."""

Vote = Callable[[], object]


def granted() -> object:
    return 7


def busy() -> object:
    return [b"busy", 1000, 0]


def broken() -> object:
    raise ResponseError("MISCONF not able to persist on disk")


@asynccontextmanager
async def voting(*phases: tuple[float, Vote]) -> AsyncIterator[Majority]:
    """Ask three servers, of which two vote in phases, each until a time, and the third never does."""

    def answer(asked: Asked) -> object:
        if asked.what != "lock_grant":
            return 0 if asked.what == "redlock_raise" else 1
        return next(vote for until, vote in phases if clock() < until)()

    def nothing(asked: Asked) -> object:
        return broken()

    servers = [Answering(answer), Answering(answer), Answering(nothing)]
    sessions = [Session.of(server) for server in servers]
    try:
        yield Majority(sessions, Keys("aiolocks:", "redlock", "orders", "lock"), ["a", "b", "c"])
    finally:
        for session in sessions:
            session.close()
        await asyncio.sleep(0)


EVER = float("inf")


@jumping
async def test_too_few_answers_are_an_error_after_a_second_where_none_were_enough_before() -> None:
    async with voting((EVER, broken)) as majority:
        with pytest.raises(QuorumError):
            await majority.grant(Request(TTL, 1, wait=True))
        assert 1 <= clock() <= 1 + LONGEST_PAUSE


@jumping
async def test_too_few_answers_are_an_error_after_a_ttl_where_there_were_enough_before() -> None:
    async with voting((0.5, busy), (EVER, broken)) as majority:
        with pytest.raises(QuorumError):
            await majority.grant(Request(TTL, 1, wait=True))
        assert 0.5 + TTL <= clock() <= 0.5 + TTL + 2 * LONGEST_PAUSE


@jumping
async def test_a_majority_that_says_busy_ends_the_time_in_which_too_few_answered() -> None:
    """Who waits for long meets many short outages, which must not add up to an error."""
    outages = [(2.0, broken), (2.5, busy), (4.0, broken), (4.5, busy), (6.0, broken), (EVER, granted)]
    async with voting((0.5, busy), *outages) as majority:
        answer = await majority.grant(Request(TTL, 1, wait=True))
        assert isinstance(answer, Granted)
        assert 6 <= clock() <= 6 + LONGEST_PAUSE
