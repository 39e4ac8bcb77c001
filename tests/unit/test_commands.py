"""Commands of one session over one link: each call is answered exactly once, whatever becomes of it."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks._bound import Arguments, pack
from aiolocks._commands import Call, Commands
from aiolocks._link import Link

pytestmark = [pytest.mark.asyncio, pytest.mark.redis]


class Echo:
    """A command that cannot be packed with a `bad` word. If *known*, it goes by a digest that no server has."""

    def __init__(self, *, known: bool = False) -> None:
        self.name = "echo"
        self._known = known

    def by_digest(self, args: Arguments) -> bytes:
        return pack(("EVALSHA", b"0" * 40, 0)) if self._known else self.whole(args)

    def whole(self, args: Arguments) -> bytes:
        if b"bad" in args:
            raise ValueError("cannot be packed")
        return pack(("ECHO", *args))


class Answers:
    """Takes the answers to calls, each once."""

    def __init__(self) -> None:
        self.all: dict[Any, list[object]] = {}

    def __call__(self, call: Call, reply: object) -> None:
        self.all.setdefault(call.subject, []).append(reply)

    async def until(self, count: int) -> dict[Any, list[object]]:
        async with asyncio.timeout(5):
            while len(self.all) < count:
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
        return {subject: [str(reply) for reply in replies] for subject, replies in self.all.items()}


def commands_of(redis: Redis) -> Commands:
    return Commands(redis.connection_pool, asyncio.get_running_loop(), time.monotonic, lambda: None)


GOOD, BAD = str(b"good"), "cannot be packed"


@pytest.mark.parametrize("connected", [False, True])
async def test_a_call_that_cannot_be_packed_is_answered_with_why_and_the_others_go_on(
    redis: Redis, connected: bool
) -> None:
    commands, answers = commands_of(redis), Answers()
    expected = {1: [BAD], 2: [GOOD], 3: [BAD], 4: [GOOD]}
    if connected:
        commands.submit(Echo(), (b"good",), answers, 1.0, 0)
        await answers.until(1)
        expected[0] = [GOOD]
    for number in range(1, 5):
        commands.submit(Echo(), (b"bad" if number % 2 else b"good",), answers, 1.0, number)
        assert number not in answers.all, "never before `submit` returns"
    assert await answers.until(len(expected)) == expected
    commands.close()


async def test_a_call_whose_arguments_cannot_be_had_is_answered_with_why(redis: Redis) -> None:
    def no_arguments(call: Call, link: Link) -> Arguments:
        raise ValueError("cannot be packed")

    commands, answers = commands_of(redis), Answers()
    commands.submit(Echo(), no_arguments, answers, 1.0, 1)
    commands.submit(Echo(), (b"good",), answers, 1.0, 2)
    assert await answers.until(2) == {1: [BAD], 2: [GOOD]}
    commands.close()


async def test_a_call_that_cannot_be_packed_whole_when_the_server_does_not_know_it_is_answered_with_why(
    redis: Redis,
) -> None:
    commands, answers = commands_of(redis), Answers()
    commands.submit(Echo(), (b"good",), answers, 1.0, 0)
    await answers.until(1)  # it is taken for known from now on
    commands.submit(Echo(known=True), (b"bad",), answers, 1.0, 1)
    commands.submit(Echo(), (b"good",), answers, 1.0, 2)
    assert await answers.until(3) == {0: [GOOD], 1: [BAD], 2: [GOOD]}
    commands.close()


class Nap:
    """A command that takes a while, behind which others are not read."""

    name = "nap"

    def by_digest(self, args: Arguments) -> bytes:
        return self.whole(args)

    def whole(self, args: Arguments) -> bytes:
        return pack(("DEBUG", "SLEEP", "0.03"))


async def test_what_is_held_back_by_a_link_that_is_full_waits_for_as_long_as_that_is_answered(redis: Redis) -> None:
    commands, answers = commands_of(redis), Answers()
    commands.submit(Echo(), (b"good",), answers, 1.0, "first")
    await answers.until(1)
    for number in range(40):
        commands.submit(Echo(), (b"x" * 65_536,), answers, 0.4, f"large {number}")
        commands.submit(Nap(), (), answers, 0.4, f"nap {number}")
    assert commands._waiting, "all went out at once"
    answered = await answers.until(81)
    assert {number: said for number, said in answered.items() if "no reply" in str(said)} == {}
    commands.close()
