"""What a lease is for, as others see it: `note=`, `lease.note()`, and who held a name when a caller's time was over."""

import asyncio
import pickle
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import AcquireTimeoutError, HierarchicalLock, Lease, Lock, LockManager, MultiLock, Once, Redlock, RWLock
from tests.support.heard import hearing
from tests.support.inside import record_sent
from tests.support.primitives import Make, as_a_stranger, cancelled, enter, every_row, exclusive_rows, queued

KNOWN_AFTER = 0.65
"""Seconds after which a lease or wait of half a second is known."""

HOSTILE = "row 500\r\nof \x1b[2J\x1b]0;pwned\x07 \u202eback\0 \ud800" + "界" * 200


async def notes(of: Any) -> set[str | None]:
    """Return the notes of all holders or waiters."""
    return {one.note for one in await of()}


async def too_late(acquire: Callable[[], Coroutine[Any, Any, object]], attempts: int = 3) -> AcquireTimeoutError:
    """Return the error of a caller whose time is over, with the holders of the name.

    A busy machine can answer later than the 50 ms in which it is asked for these.
    """
    with pytest.raises(AcquireTimeoutError) as caught:
        await as_a_stranger(acquire())
    if caught.value.holders is None and attempts > 1:
        return await too_late(acquire, attempts - 1)
    return caught.value


@every_row
async def test_a_lease_that_lasts_is_known_by_its_note_and_its_later_notes(make: Make) -> None:
    lock: Any = make(ttl=5, note="May's report")
    async with lock as lease:
        assert await notes(lock.holders) == {None}, "short leases do not write it"
        await asyncio.sleep(KNOWN_AFTER)
        assert await notes(lock.holders) == {"May's report"}
        for note, shown in (("x" * 300, "x" * 200), ("", None)):
            await lease.note(note)
            await asyncio.sleep(2.1)
            assert await notes(lock.holders) == {shown}
    assert await notes(lock.holders) == set()


@every_row
async def test_a_lease_that_begins_without_a_note_gets_one_before_it_is_known(make: Make) -> None:
    async with make(ttl=5) as lease:
        await lease.note("one")
        await lease.note("two")
        await asyncio.sleep(KNOWN_AFTER)
        assert await notes(make().holders) == {"two"}
        assert lease.held
        await lease.release()
        await lease.note("three")
        for wrong in (None, 3, b"bytes"):
            with pytest.raises(TypeError, match="note must be a str"):
                await lease.note(wrong)  # type: ignore[arg-type]


@exclusive_rows
async def test_waiters_are_known_by_their_notes_and_positions(make: Make) -> None:
    lock: Any = make()
    if isinstance(lock, Redlock):
        return
    leases = await make.fill()
    waiting: list[asyncio.Task[Lease]] = []
    for number in range(3):
        waiting.append(as_a_stranger(make(ttl=5, note=f"caller {number}").acquire()))
        await queued(make.beside(), number + 1)
    await asyncio.sleep(KNOWN_AFTER)
    found = await lock.waiters()
    assert [(one.position, one.note) for one in found] == [(number, f"caller {number}") for number in range(3)]
    await cancelled(*waiting)
    for lease in leases:
        await lease.release()


async def test_a_position_counts_all_who_wait_for_the_name(client: Redis) -> None:
    rw, path = RWLock(client, "orders"), HierarchicalLock(client, "shop")
    async with rw.write, path.write:
        waiting = []
        for number, lock in enumerate([rw.read, rw.write, rw.read], 1):
            waiting.append(as_a_stranger(lock.acquire()))
            await queued(rw.read, number)
        below = HierarchicalLock(client, "shop/orders/42").read
        for number, level in enumerate([below, path.write, below], 1):
            waiting.append(as_a_stranger(level.acquire()))
            await queued(path.read, number)
        assert [one.position for one in await rw.write.waiters()] == [0, 1, 2]
        found = await HierarchicalLock(client, "shop/orders/42").read.waiters()
        assert [(one.position, one.mode) for one in found] == [(1, "write")], "the others wait to go further down"
        await cancelled(*waiting)


async def test_a_manager_has_a_note_for_all_and_a_call_another(client: Redis) -> None:
    locks = LockManager(client, note="nightly")
    async with locks.lock("a"), locks.semaphore("b", 2, note="monthly"), locks.rwlock("c", note=None).read:
        locks.rate_limiter("d", 2, per=1)
        locks.versioned("e")
        await asyncio.sleep(KNOWN_AFTER)
        assert await notes(locks.lock("a").holders) == {"nightly"}
        assert await notes(locks.semaphore("b", 2).holders) == {"monthly"}
        assert await notes(locks.rwlock("c").read.holders) == {None}
    with pytest.raises(ValueError, match="note must have at most 200 characters, not 201"):
        LockManager(client, note="x" * 201)


async def test_loops_around_a_lease_have_notes(client: Redis) -> None:
    election, once = aiolocks.Election(client, "a", note="leads"), Once(client, "b", keep=0, note="runs")
    seen: list[set[str | None]] = []

    async def lead(lease: Lease) -> None:
        await asyncio.sleep(KNOWN_AFTER)
        seen.append({getattr(await election.leader(), "note", None)})
        await lease.note("led")
        await asyncio.sleep(2.1)
        seen.append({getattr(await election.leader(), "note", None)})

    async def run() -> None:
        await asyncio.sleep(KNOWN_AFTER)
        seen.append(await notes(once.holders))

    await election.run(lead)
    await once.run(run)
    assert seen == [{"leads"}, {"led"}, {"runs"}]


async def test_an_adopted_lease_has_the_note_of_its_adopter(client: Redis) -> None:
    text = await (await Lock(client, "a", note="handler").acquire()).hand_off()
    async with await Lock(client, "a", note="worker").adopt(text):
        await asyncio.sleep(KNOWN_AFTER)
        assert await notes(Lock(client, "a").holders) == {"worker"}


async def test_a_note_goes_on_with_its_lease_through_an_upgrade_and_a_revoked_wait(client: Redis) -> None:
    rw = RWLock(client, "a", note="reader")
    async with rw.upgradeable as lease:
        await lease.note("half way")
        async with lease.upgrade():
            await asyncio.sleep(KNOWN_AFTER)
            found = {one.mode: one.note for one in await rw.read.holders()}
            assert found == {"upgradeable": "half way", "write": "reader"}


async def test_texts_that_could_do_harm_are_given_as_they_are_and_shown_escaped(client: Redis) -> None:
    lock = Lock(client, "orders", ttl=5)
    async with lock as lease:
        await lease.note(HOSTILE)
        await asyncio.sleep(KNOWN_AFTER)
        (holder,) = await lock.holders()
        assert holder.note == HOSTILE.replace("\0", " ").replace("\ud800", "?")[:200]
        error = await too_late(lambda: lock.acquire(timeout=1.1))
        text = str(error)
        assert text.isprintable()
        assert r"row 500\r\nof \x1b[2J" in text


@pytest.mark.redis
async def test_what_is_read_may_be_anything(client: Redis) -> None:
    lock = Lock(client, "orders")
    async with lock:
        await asyncio.sleep(KNOWN_AFTER)
        keys = [key async for key in client.scan_iter("aiolocks:session:*")]
        (digest,) = [each for each in map(bytes_of, await client.hkeys(keys[0])) if len(each) == 16]
        for written, read in ((b"\xff\xfe\x80", "\ufffd" * 3), (b"x" * 5000, "x" * 200), (b"", None)):
            await client.hset(keys[0], digest + b"n", written)
            (holder,) = await lock.holders()
            assert holder.note == read


def bytes_of(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


async def test_events_carry_the_note_of_the_moment(client: Redis) -> None:
    with hearing() as heard:
        async with Lock(client, "a", note="first") as lease:
            with pytest.raises(AcquireTimeoutError):
                await as_a_stranger(Lock(client, "a", note="other").acquire(timeout=0.1))
            await lease.note("second")
        await enter(Lock(client, "b"))
    assert [(event.kind, event.note) for event in heard] == [
        ("acquired", "first"), ("waiting", "other"), ("timed_out", "other"), ("released", "second"),
        ("acquired", None), ("released", None),
    ]  # fmt: skip


@exclusive_rows
async def test_a_caller_that_waited_for_more_than_a_second_learns_who_held_the_name(make: Make) -> None:
    async with make(ttl=9, note="May's report") as lease:
        await asyncio.sleep(KNOWN_AFTER)
        error = await too_late(lambda: make(ttl=9).acquire(timeout=1.2))
        (holder,) = error.holders or ()
        assert holder.fencing_token in lease.fencing_tokens.values()
        assert holder.note == "May's report"
        assert str(error).endswith(" s: May's report")
        assert pickle.loads(pickle.dumps(error)).holders == (holder,)
        for shorter in (0, 0.2, 1):
            with pytest.raises(AcquireTimeoutError) as caught:
                await as_a_stranger(make().acquire(timeout=shorter))
            assert caught.value.holders is None
            assert "held by" not in str(caught.value).partition("held by another holder")[2]


async def test_the_text_says_by_whom_where_since_when_and_for_what(client: Redis) -> None:
    locks = LockManager(client, holder="billing", ttl=60)
    async with locks.lock("reports:may", note="May's report"):
        await asyncio.sleep(1.5)
        (holder,) = await locks.lock("reports:may").holders()
        error = await too_late(lambda: locks.lock("reports:may").acquire(timeout=1.7))
        text, seconds = str(error), re.search(r" for (\d+) s: ", str(error))
        assert seconds is not None
        assert 3 <= int(seconds[1]) <= 9
        assert text.replace(seconds[0], " for 41 s: ") == (
            "lock 'reports:may': not granted within 1.7 s: held by another holder; "
            f"held by billing on {holder.host} (pid {holder.pid}) for 41 s: May's report"
        )


async def test_a_caller_of_a_once_learns_who_runs(client: Redis) -> None:
    once = Once(client, "a", keep=0, note="May's report")
    running = asyncio.create_task(once.run(lambda: asyncio.sleep(6)))
    await asyncio.sleep(KNOWN_AFTER)
    error = await too_late(lambda: Once(client, "a", keep=0).run(lambda: asyncio.sleep(0), timeout=1.2))
    assert re.search(r"no outcome within 1\.2 s; held by .*: May's report$", str(error))
    assert [holder.note for holder in error.holders or ()] == ["May's report"]
    with pytest.raises(AcquireTimeoutError) as caught:
        await as_a_stranger(Once(client, "a", keep=0).run(lambda: asyncio.sleep(0), timeout=0.1))
    assert caught.value.holders is None
    await running


async def test_of_several_names_it_is_about_the_one_that_was_waited_for(client: Redis) -> None:
    async with MultiLock(client, ["b"], note="in the way"), MultiLock(client, ["c"], note="not reached"):
        await asyncio.sleep(KNOWN_AFTER)
        error = await too_late(lambda: MultiLock(client, ["a", "b", "c"], note="own").acquire(timeout=1.5))
        assert [holder.note for holder in error.holders or ()] == ["in the way"]


async def test_of_a_path_only_what_is_in_the_way_of_it_is_meant(client: Redis) -> None:
    beside, above = HierarchicalLock(client, "shop/bills").write, HierarchicalLock(client, "shop").read
    async with beside:
        error = await too_late(lambda: above.acquire(timeout=1.1))
        assert [holder.mode for holder in error.holders or ()] == ["intent-write"]
    async with above, HierarchicalLock(client, "shop/users").read:
        error = await too_late(lambda: beside.acquire(timeout=1.1))
        assert [holder.mode for holder in error.holders or ()] == ["read"]


async def test_a_wait_that_ends_before_its_time_is_asked_about_by_no_one(client: Redis) -> None:
    lock = Lock(client, "a", ttl=5)
    await enter(lock)
    sent = record_sent(client, "aiolocks:lock:{a}")
    await enter(lock.hold(timeout=5))
    assert len(sent) == 2
    async with Lock(client, "a", ttl=60):
        full = as_a_stranger(lock.acquire(timeout=5, max_waiting=0))
        with pytest.raises(aiolocks.QueueFullError) as caught:
            await full
        assert caught.value.holders is None
        waiting = as_a_stranger(lock.acquire(timeout=5))
        await asyncio.sleep(4.9)
        waiting.cancel()
        await asyncio.wait([waiting])
        asked = len(sent)
        await asyncio.sleep(0.2)
    assert len(sent) == asked + 1, "the release"
