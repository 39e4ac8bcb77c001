"""What a session says of itself, to a server in the test's own hands and in virtual time."""

import asyncio
import logging
import os

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks import Lock
from tests.support.answering import Answering, Asked, session_of


def granting() -> Answering:
    answers: dict[str, object] = {"lock_grant": 7, "lock_renew_many": [1, 1]}
    return Answering(lambda asked: answers.get(asked.what, 1))


async def test_an_introduction_comes_ahead_of_the_first_request_and_once() -> None:
    at: list[int] = []

    def answer(asked: Asked) -> int:
        at.append(len(server.introductions))
        return 7 if asked.what == "lock_grant" else 1

    server = Answering(answer)
    async with session_of(server):
        for _ in range(3):
            async with Lock(server.client(), "orders"):
                pass
    assert at[0] == 1
    assert len(server.introductions) == 1
    (said,) = server.introductions
    assert said.keys[0] == b"aiolocks:session:" + server.runs("lock_grant")[0].arguments[0][:11]
    assert said.arguments[:2] == [b"30000", b"0"]
    assert said.arguments[4:] == [b"pid", b"%d" % os.getpid()]


async def test_an_introduction_is_repeated_only_while_anything_is_held() -> None:
    server = granting()
    async with Lock(server.client(), "orders", ttl=30):
        await asyncio.sleep(101)
    assert [said.at for said in server.introductions] == pytest.approx([0, 0.5, *range(10, 101, 10)], abs=0.06)
    await asyncio.sleep(100)
    assert len(server.introductions) == 12


async def test_an_introduction_is_repeated_over_each_new_link_and_under_each_prefix() -> None:
    server = granting()
    async with Lock(server.client(), "orders"), Lock(server.client(), "orders", prefix="app:"):
        assert [said.keys[0].partition(b"session:")[0] for said in server.introductions] == [b"aiolocks:", b"app:"]
        server.cut()
        await asyncio.sleep(0.4)
        assert len(server.introductions) == 4
    await server.close()


async def test_a_session_that_may_not_say_it_goes_on_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aiolocks")
    server = granting()
    server.introduced = NoPermissionError("NOPERM No permissions to access a key")
    for _ in range(3):
        async with Lock(server.client(), "orders") as lease:
            await asyncio.sleep(100)
            assert lease.held
        await asyncio.sleep(10)
    assert len(server.introductions) == 3, "once over each link"
    assert len([line for line in caplog.messages if "host and pid" in line]) == 1


async def test_an_introduction_that_cannot_be_run_just_now_disturbs_nothing() -> None:
    server = granting()
    server.introduced = ResponseError("BUSY Redis is busy running a script.")
    async with Lock(server.client(), "orders", ttl=3) as lease:
        await asyncio.sleep(10)
        assert lease.held
    assert len(server.introductions) > 3, "it is tried again"
    await server.close()
