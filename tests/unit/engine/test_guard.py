"""Commands that a lease guards, in virtual time: what is sent, how its answer is read, and until when it is tried."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import ClusterCrossSlotError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lease, LeaseLostError
from aiolocks._core.answers import REPLY_TIMEOUT
from aiolocks._core.timing import deadline, retry_delay
from aiolocks._grantors.replication import _WAIT
from aiolocks._grantors.session import Session
from aiolocks._redis.pipeline import PendingCall
from tests.support.answering import Answering, Later
from tests.support.pipelines import pipeline_in
from tests.support.virtual import clock

HOLDER = b"aiolocks:lock:{orders}"

OK = b"*1\r\n+OK\r\n"


@asynccontextmanager
async def holding(said: Any, ttl: float = 30.0) -> AsyncIterator[tuple[Answering, Lease]]:
    """Hold a lock on a server that answers guards so, and grants and renews it."""
    await asyncio.sleep(100)
    server = Answering(lambda asked: said if asked.what == "lock_guard" else 1)
    lease = await server.asking(ttl=ttl, on_lost="flag").acquire(Lease)
    try:
        yield server, lease
    finally:
        await server.close()


@pytest.mark.parametrize(("ttl", "kept_ms"), [(30.0, b"60000"), (90.0, b"90000")])
async def test_runs_are_numbered_and_name_the_record_the_holder_and_the_keys(ttl: float, kept_ms: bytes) -> None:
    async with holding(OK, ttl) as (server, lease):
        token = lease.token.encode()
        for number in (b"1", b"2", b"3"):
            assert await lease.guard(("SET", "k", "v")) == [b"OK"]
            words = server.runs("lock_guard")[-1].words[2:]
            assert words[:4] == [b"3", HOLDER + b":g:" + token, HOLDER, b"k"]
            assert words[4:] == [number, kept_ms, b"1", token, b"3", b"SET", b"k", b"v"]


async def test_runs_of_one_lease_never_overlap() -> None:
    async with holding(Later(0.5, OK)) as (server, lease):
        await asyncio.gather(*(lease.guard(("INCR", "n")) for _ in range(3)))
        assert [asked.at for asked in server.runs("lock_guard")] == [100, 100.5, 101]


@pytest.mark.parametrize(("said", "told"), [
    (b"*1\r\n-ERR wrong\r\n", "command 1 of 3 (SET): wrong"),
    (b"*2\r\n+OK\r\n-ERR wrong\r\n", "command 2 of 3 (LPUSH): wrong; what came before it stays"),
    (b"*3\r\n+OK\r\n:1\r\n-ERR wrong\r\n", "command 3 of 3 (GET): wrong; what came before it stays"),
])  # fmt: skip
async def test_an_error_says_which_command_it_was_and_what_stays(said: bytes, told: str) -> None:
    async with holding(said) as (_, lease):
        with pytest.raises(ResponseError) as caught:
            await lease.guard(("set", "k", 1), ("lpush", "k", 2), ("get", "k"))
        assert str(caught.value) == told
        assert lease.held


async def test_a_lease_released_while_its_commands_were_on_their_way_was_not_lost() -> None:
    async with holding(Later(0.5, 0)) as (_, lease):
        asked = asyncio.create_task(lease.guard(("INCR", "n")))
        await asyncio.sleep(0.1)
        await lease.release()
        with pytest.raises(LeaseLostError, match="released before"):
            await asked


async def test_commands_of_a_lease_that_is_over_are_not_sent() -> None:
    async with holding(OK) as (server, lease):
        await lease.release()
        with pytest.raises(LeaseLostError):
            await lease.guard(("INCR", "n"))
        assert not server.runs("lock_guard")


@pytest.mark.parametrize("ttl", [30.0, 4.0])
async def test_guarded_commands_are_tried_for_ten_seconds_at_most_and_while_the_lease_lasts(ttl: float) -> None:
    async with holding(RedisConnectionError("gone"), ttl) as (server, lease):
        with pytest.raises(RedisConnectionError, match="gone"):
            await lease.guard(("INCR", "n"))
        until = min(100 + REPLY_TIMEOUT, deadline(100, ttl))
        expected = [100.0]
        while (pause := retry_delay(ttl, len(expected))) + expected[-1] < until:
            expected.append(expected[-1] + pause)
        assert [asked.at for asked in server.runs("lock_guard")] == pytest.approx(expected)
        assert {asked.words[6] for asked in server.runs("lock_guard")} == {b"1"}, "the same run"


async def test_a_guard_that_is_cancelled_before_its_commands_left_never_sends_them() -> None:
    async with holding(OK) as (server, lease):
        server.slow = 0.7
        server.cut()
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lease.guard(("INCR", "n")), 0.5)
        await asyncio.sleep(10)
        assert await lease.guard(("GET", "n")) == [b"OK"]
        assert [asked.words[-2:] for asked in server.runs("lock_guard")] == [[b"GET", b"n"]]


async def test_a_guard_that_is_cancelled_with_its_commands_on_their_way_drops_the_answer() -> None:
    async with holding(Later(0.5, OK)) as (server, lease):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lease.guard(("INCR", "n")), 0.2)
        await asyncio.sleep(1)
        server.answer = lambda asked: OK
        assert await lease.guard(("INCR", "n")) == [b"OK"]


async def test_a_cluster_that_refuses_is_told_in_words_that_help() -> None:
    async with holding(ClusterCrossSlotError("CROSSSLOT Keys in request don't hash to the same slot")) as (_, lease):
        with pytest.raises(ClusterCrossSlotError, match=r"let each key begin with \{orders\}\. Nothing was written"):
            await lease.guard(("SET", "elsewhere", 1))
        assert lease.held


async def test_what_a_full_link_holds_back_is_given_up_after_ten_seconds_and_never_sent() -> None:
    """However long the link goes on to answer others."""
    async with holding(OK, 60) as (server, lease):
        commands = pipeline_in(Session.of(server).context)
        link = commands._link
        assert link is not None

        async def others() -> None:
            while True:
                PendingCall(_WAIT, (1, 1), lambda call, reply: None, 1.0, None, None, 0.0).send(link, clock())
                await asyncio.sleep(0.5)

        link.full = True
        commands._flow()
        crowd = asyncio.create_task(others())
        began = clock()
        with pytest.raises(RedisTimeoutError, match="no room"):
            await asyncio.wait_for(lease.guard(("SET", "key", "value")), 3 * REPLY_TIMEOUT)
        assert clock() - began == pytest.approx(REPLY_TIMEOUT, abs=1)
        link.full = False
        commands._flow()
        assert await lease.release()
        assert server.runs("lock_guard") == []
        crowd.cancel()


async def test_commands_are_sent_again_over_another_link_if_the_answer_is_no_list_of_replies() -> None:
    async with holding(OK) as (server, lease):
        said = [b"hello", OK]
        server.answer = lambda asked: said.pop(0) if asked.what == "lock_guard" else 1
        assert (await lease.guard(("INCR", "n")), len(server.connections)) == ([b"OK"], 2)
