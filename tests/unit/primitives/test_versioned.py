"""An optimistic write in virtual time: how often and after which pauses it is tried, and what it leaves out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import VersionConflictError, Versioned
from tests.support.answering import SILENCE, Answering, Asked
from tests.support.primitives import NO_SERVER, cancelled
from tests.support.virtual import clock


@asynccontextmanager
async def asking(answer: Callable[[Asked], object]) -> AsyncIterator[tuple[Versioned, Answering]]:
    server = Answering(answer)
    try:
        yield Versioned(server.client(), "stock"), server
    finally:
        await server.close()


def others_write(asked: Asked) -> object:
    """Answer what a server does whose value is written by others all the time."""
    return [b"17", b"theirs"] if asked.what == "versioned_read" else [0, b"theirs anew"]


@pytest.mark.parametrize(("words", "attempts"), [({}, 20), ({"attempts": 1}, 1)])
async def test_an_update_is_tried_twenty_times_or_as_often_as_it_says(words: dict[str, int], attempts: int) -> None:
    async with asking(others_write) as (stock, server):
        with pytest.raises(VersionConflictError):
            await stock.update(lambda _: "ours", **words)
        assert len(server.times("versioned_write")) == attempts


async def test_pauses_between_attempts_are_random_and_double_up_to_half_a_second() -> None:
    pauses: dict[int, list[float]] = {}
    async with asking(others_write) as (stock, server):
        for _ in range(30):
            before = len(server.times("versioned_read"))
            with pytest.raises(VersionConflictError):
                await stock.update(lambda _: "ours", attempts=10)
            for conflicts, (sooner, later) in enumerate(pairwise(server.times("versioned_read")[before:]), 1):
                pauses.setdefault(conflicts, []).append(later - sooner)
    assert len(pauses) == 9
    longest = {conflicts: min(0.005 * 2**conflicts, 0.5) for conflicts in pauses}
    assert all(max(seen) <= longest[conflicts] + 1e-6 for conflicts, seen in pauses.items())
    shares = [pause / longest[conflicts] for conflicts, seen in pauses.items() for pause in seen]
    assert min(shares) < 0.1
    assert max(shares) > 0.9


async def test_what_is_not_answered_is_asked_again_each_time_twice_as_patiently_and_for_ten_seconds() -> None:
    async with asking(lambda _: SILENCE) as (stock, server):
        with pytest.raises(RedisTimeoutError):
            await stock.read()
        assert clock() == 10
        assert server.times("versioned_read") == pytest.approx([0, 1, 3, 7])


async def test_a_write_sent_again_is_the_same_write_and_each_other_write_has_a_name_of_its_own() -> None:
    """Or one whose answer was lost would be a conflict with itself."""
    replies = [SILENCE, [1, b"ours"], [1, b"ours"]]
    async with asking(lambda _: replies.pop(0)) as (stock, server):
        for _ in range(2):
            assert await stock.write("18", "seen") == "ours"
        first, again, other = [asked.words[2:] for asked in server.asked]
        assert first == again != other


async def test_a_cancelled_write_that_has_not_left_yet_never_does() -> None:
    async with asking(lambda _: [b"17", b"ours"]) as (stock, server):
        server.slow = 1.0
        task = asyncio.create_task(stock.write("18", "seen"))
        await asyncio.sleep(0.5)
        await cancelled(task)
        await stock.read()
        assert (clock(), [asked.what for asked in server.asked]) == (1, ["versioned_read"])


@pytest.mark.parametrize("attempts", [True, 2.0, "3", None, 0, -1])
async def test_attempts_are_a_number_of_at_least_one(attempts: Any) -> None:
    with pytest.raises(ValueError if type(attempts) is int else TypeError, match="attempts"):
        await Versioned(NO_SERVER, "stock").update(lambda _: "ours", attempts=attempts)


def test_the_shortest_time_that_a_value_may_last_is_a_millisecond() -> None:
    Versioned(NO_SERVER, "stock", expire=0.001)
    with pytest.raises(ValueError, match="expire"):
        Versioned(NO_SERVER, "stock", expire=0.0009)


async def test_times_are_told_to_the_server_in_milliseconds() -> None:
    server = Answering(lambda _: [1, b"ours"])
    for expire, told in ((None, b"0"), (0.001, b"1"), (30, b"30000")):
        await Versioned(server.client(), "stock", expire=expire).write("18", "seen")
        assert server.asked[-1].words[-3:] == [told, b"86400000", b"60000"]
    await server.close()
