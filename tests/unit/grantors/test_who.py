"""What a session says of itself, to a server in the test's own hands and in virtual time."""

import asyncio
import logging
import os
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks import Lock, LockManager
from tests.support.answering import Answering, Asked, session_of
from tests.support.virtual import clock


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
    assert (at[0], len(server.introductions)) == (1, 1)
    (said,) = server.introductions
    assert said.keys[0] == b"aiolocks:session:" + server.runs("lock_grant")[0].arguments[0][:11]
    assert (said.arguments[:2], said.arguments[4:]) == ([b"40000", b"0"], [b"pid", b"%d" % os.getpid()])


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
            await lease.note("a note")
            await asyncio.sleep(100)
            assert lease.held
        await asyncio.sleep(10)
    assert len(server.introductions) == 3, "once over each link"
    assert len([line for line in caplog.messages if "host and pid" in line]) == 1


def fields_of(said: Asked) -> dict[bytes, bytes]:
    words = said.arguments[2 + int(said.arguments[1]) :]
    return dict(zip(words[::2], words[1::2], strict=True))


def notes_of(server: Answering) -> list[tuple[float, list[bytes]]]:
    each = [
        (said.at, [note for name, note in fields_of(said).items() if len(name) == 17]) for said in server.introductions
    ]
    return [(at, notes) for at, notes in each if notes]


async def test_what_has_lasted_for_half_a_second_is_named_and_what_has_not_costs_nothing() -> None:
    """However the leases come and go: a hundred of 0.45 s write no more than the first request did."""
    server = granting()
    locks = LockManager(server.client(), holder="billing", note="none of your business")

    async def hold(name: str) -> None:
        async with locks.lock(name) as lease:
            await lease.note("begun")
            await asyncio.sleep(0.45)

    async with session_of(server), asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(hold(f"short:{number}"))
            await asyncio.sleep(0.013)
    assert len(server.introductions) == 1
    server.introductions.clear()
    began = clock()
    async with locks.lock("long", note="May's report"):
        await asyncio.sleep(0.6)
    names = [(said.at - began, set(fields_of(said).values())) for said in server.introductions]
    assert names[-1][0] == pytest.approx(0.5, abs=0.06)
    assert {b"May's report", b"billing\0Task-1"} <= {*names[-1][1]} | {b"billing\0Task-1"}
    await server.close()


@pytest.mark.parametrize("options", [{"renew": False}, {"watchdog": "thread"}], ids=["not renewed", "by a thread"])
@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "block"])
async def test_leases_are_named_whatever_renews_them(options: dict[str, Any], by_hand: bool) -> None:
    server = granting()
    lock = Lock(server.client(), "orders", note="a", **options)
    async with session_of(server):
        if by_hand:
            lease = await lock.acquire()
            await asyncio.sleep(0.6)
            await lease.release()
        else:
            async with lock:
                await asyncio.sleep(0.6)
    task = asyncio.current_task()
    assert task is not None
    assert set(fields_of(server.introductions[-1]).values()) >= {b"a", b"\0" + task.get_name().encode()}


async def test_a_note_is_written_within_two_seconds_and_its_changes_of_that_time_together() -> None:
    server = granting()
    async with session_of(server), Lock(server.client(), "orders") as lease:
        await asyncio.sleep(1)
        written = len(server.introductions)
        for row in range(1000):
            await lease.note(f"row {row}")
            await asyncio.sleep(0.01)
        assert 5 <= len(server.introductions) - written <= 8
        for at, (note,) in notes_of(server):
            assert 0 <= (at - 1) - int(note.removeprefix(b"row ")) / 100 <= 0.6
        changed = clock()
        await lease.note("the last one")
        await asyncio.sleep(2)
        at, notes = notes_of(server)[-1]
        assert at - changed <= 2
        assert notes == [b"the last one"]
        await lease.note("")
        await asyncio.sleep(2)
        assert b"1" in server.introductions[-1].arguments[1:2], "its field is removed"
        assert len(fields_of(server.introductions[-1])) == 3


async def test_after_its_end_a_note_is_neither_kept_nor_written() -> None:
    server = granting()
    async with session_of(server), Lock(server.client(), "other"):
        lease = await Lock(server.client(), "orders").acquire()
        await asyncio.sleep(1)
        await lease.release()
        written = len(server.introductions)
        await lease.note("too late")
        await asyncio.sleep(5)
        assert len(server.introductions) == written
        await asyncio.sleep(10)
        assert int(server.introductions[-1].arguments[1]) == 2, "its fields are removed with the next renewal"


async def test_a_lost_reply_and_a_key_that_is_gone_cost_a_repeat_and_many_are_written_in_parts() -> None:
    server = granting()
    async with session_of(server):
        leases = [await Lock(server.client(), f"orders:{number}", note="a").acquire() for number in range(300)]
        await asyncio.sleep(1)
        parts = [len(fields_of(said)) - 2 for said in server.introductions]
        assert sorted(parts) == [0, 200, 200, 200]
        server.introductions.clear()
        server.introduced = ResponseError("BUSY Redis is busy running a script.")
        await leases[7].note("b")
        await asyncio.sleep(1.6)
        assert [notes for _, notes in notes_of(server)] == [[b"b"]]
        server.introduced = 1
        await asyncio.sleep(0.6)
        assert [notes for _, notes in notes_of(server)] == [[b"b"], [b"b"]]
        server.introductions.clear()
        server.introduced = 0  # the key was not there
        await leases[7].note("c")
        await asyncio.sleep(2)
        assert len(server.introductions) <= 4, "not as fast as it can"
        del server.introductions[:-1]  # the last of these made the key again
        server.introduced = 1
        await asyncio.sleep(1)
        assert len({name for said in server.introductions for name in fields_of(said)}) == 2 + 600
        for lease in leases:
            await lease.release()
