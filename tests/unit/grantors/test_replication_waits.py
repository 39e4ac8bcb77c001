"""What replicas are waited for with, in virtual time: which WAIT is sent when, and whom its answer concerns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks._grantors.replication import Replication
from aiolocks._redis.clients import Server
from aiolocks._redis.pipeline import PendingCall
from aiolocks._redis.scripts import Arguments, Command, pack
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.virtual import clock


class Write(Command):
    script = "SET"

    def eval(self, args: Arguments) -> bytes:
        return pack(("SET", *args))


class Waiting:
    def __init__(self, server: Answering) -> None:
        self.server = server
        self.replication = Replication(Server(server), asyncio.get_running_loop(), clock)
        self.over: dict[str, Any] = {}
        """When each was told, and what."""
        self.asked: dict[str, asyncio.Future[int]] = {}

    def write(self) -> PendingCall:
        return self.replication.pipeline.submit(Write(), (b"k", b"v"), lambda call, reply: None, 5.0)

    def ask(self, name: str, replicas: int, bound: float, call: PendingCall | None = None) -> None:
        asked = self.asked[name] = self.replication.acknowledged(call or self.write(), replicas, bound)

        def told(answered: "asyncio.Future[int]") -> None:
            if not answered.cancelled():
                self.over[name] = round(clock(), 6), answered.exception() or answered.result()

        asked.add_done_callback(told)

    def waits(self) -> list[tuple[float, int, int]]:
        """Return of each WAIT when it left, for how many replicas, and for how many milliseconds."""
        waits = [asked for asked in self.server.asked if asked.what == "WAIT"]
        return [(round(asked.at, 6), int(asked.words[1]), int(asked.words[2])) for asked in waits]


def as_redis(replicas: "dict[float, int] | int") -> Any:
    """Answer WAIT as Redis does, where so many have it from those times on."""

    def answer(asked: Asked) -> object:
        if asked.what != "WAIT":
            return b"OK"
        steps = {0.0: replicas} if isinstance(replicas, int) else replicas
        wanted, until = int(asked.words[1]), clock() + int(asked.words[2]) / 1000
        enough = [at for at, count in steps.items() if count >= wanted]
        at = min([until, *(max(at, clock()) for at in enough)])
        return Later(at - clock(), [count for since, count in steps.items() if since <= at][-1])

    return answer


@asynccontextmanager
async def waiting(answer: Any) -> AsyncIterator[Waiting]:
    there = Waiting(Answering(answer))
    try:
        yield there
    finally:
        there.replication.pipeline.close()
        await asyncio.sleep(0)


async def test_replicas_are_waited_for_in_slices_until_enough_have_it() -> None:
    async with waiting(as_redis({0.0: 0, 0.12: 2})) as there:
        there.ask("it", 2, 1.0)
        await asyncio.sleep(5)
        assert (there.waits(), there.over) == ([(0, 2, 50), (0.05, 2, 50), (0.1, 2, 50)], {"it": (0.12, 2)})


async def test_replicas_are_waited_for_as_long_as_asked_and_then_as_many_as_have_it_are_reported() -> None:
    await asyncio.sleep(100)
    async with waiting(as_redis(1)) as there:
        there.ask("it", 2, 0.12)
        await asyncio.sleep(5)
        assert there.waits()[:3] == [(100, 2, 50), (100.05, 2, 50), (100.1, 2, 20)]
        assert there.over == {"it": (pytest.approx(100.12, abs=0.0011), 1)}


async def test_a_wait_is_never_for_ever() -> None:
    """Which WAIT with 0 milliseconds would be."""
    async with waiting(as_redis(0)) as there:
        there.ask("it", 1, 0.0504)
        await asyncio.sleep(5)
        assert min(for_ms for _, _, for_ms in there.waits()) == 1


async def test_one_wait_serves_all_that_was_written_before_it_each_by_what_it_needs() -> None:
    async with waiting(as_redis({0.0: 0, 0.03: 1, 0.07: 3})) as there:
        there.ask("blocks it for a slice", 1, 1.0)
        there.ask("needs one", 1, 1.0)
        there.ask("needs three", 3, 1.0)
        there.ask("needs five", 5, 0.08)
        await asyncio.sleep(5)
        assert there.waits()[:3] == [(0, 1, 50), (0.03, 1, 50), (0.03, 3, 50)]
        assert there.over == {
            "blocks it for a slice": (0.03, 1), "needs one": (0.03, 1), "needs three": (0.07, 3),
            "needs five": (pytest.approx(0.08), 3),
        }  # fmt: skip


async def test_an_answer_says_nothing_of_what_was_written_behind_its_wait() -> None:
    async with waiting(lambda asked: Later(0.04, 2) if asked.what == "WAIT" else b"OK") as there:
        there.ask("before", 2, 1.0)
        await asyncio.sleep(0.02)
        there.ask("behind", 2, 1.0)
        await asyncio.sleep(5)
        assert [at for at, _, _ in there.waits()] == [0, 0.04]
        assert there.over == {"before": (0.04, 2), "behind": (0.08, 2)}


async def test_what_no_one_needs_any_more_is_not_waited_for() -> None:
    async with waiting(as_redis(0)) as there:
        there.ask("gone", 1, 1.0)
        there.ask("other", 3, 0.2)
        await asyncio.sleep(0.01)
        there.asked["gone"].cancel()
        await asyncio.sleep(5)
        assert {replicas for at, replicas, _ in there.waits() if at > 0.06} == {3}
        assert there.over == {"other": (pytest.approx(0.2), 0)}
        sent = len(there.waits())
        await asyncio.sleep(5)
        assert len(there.waits()) == sent
        there.ask("later", 0, 1.0)
        await asyncio.sleep(1)
        assert there.over["later"] == (pytest.approx(10.01), 0)


async def test_a_silence_is_told_to_all_that_wait_and_was_waited_for_as_long_as_the_most_patient_does() -> None:
    async with waiting(lambda asked: SILENCE if asked.what == "WAIT" else b"OK") as there:
        patience = there.replication.patience
        assert (patience(1.0), patience(0.25)) == pytest.approx((2.05, 1.3))
        there.ask("first", 1, 0.25)
        await asyncio.sleep(0.1)
        there.ask("second", 1, 1.0)
        await asyncio.sleep(30)
        assert {name: at for name, (at, _) in there.over.items()} == {"first": 1.3, "second": 1.3}
        assert all(isinstance(told, RedisTimeoutError) for _, told in there.over.values())
        there.server.answer = as_redis(0)
        there.ask("blocks it", 1, 1.0)
        there.server.answer = lambda asked: SILENCE if len(there.waits()) > 3 else as_redis(0)(asked)
        begun = clock()
        there.ask("short", 1, 0.25)
        there.ask("long", 1, 1.0)
        await asyncio.sleep(30)
        assert there.over["long"][0] - begun > 2
        assert isinstance(there.over["long"][1], RedisError)


async def test_over_another_connection_than_it_was_written_nothing_is_known() -> None:
    """Redis says of a connection that has written nothing that all replicas have it."""
    async with waiting(as_redis(3)) as there:
        call = there.write()
        await asyncio.sleep(1)
        there.server.cut()
        await asyncio.sleep(1)
        there.ask("lost", 1, 1.0, call)
        await asyncio.sleep(1)
        assert isinstance(there.over["lost"][1], RedisConnectionError)
        assert "while replicas were waited for" in str(there.over["lost"][1])
        there.ask("anew", 1, 1.0)
        await asyncio.sleep(1)
        assert there.over["anew"] == (3.0, 3)


async def test_the_time_to_connect_does_not_count() -> None:
    async with waiting(as_redis(0)) as there:
        there.server.slow = 0.5
        there.ask("it", 1, 0.1)
        await asyncio.sleep(5)
        assert there.over == {"it": (0.6, 0)}


async def test_an_answer_that_is_no_number_of_replicas_is_an_error() -> None:
    for odd in (True, 1.5):
        async with waiting(lambda asked, odd=odd: odd if asked.what == "WAIT" else b"OK") as there:
            there.ask("it", 1, 1.0)
            await asyncio.sleep(5)
            assert isinstance(there.over["it"][1], RedisConnectionError), odd
