"""The checkers of recorded histories, which users run on theirs: each must see what is wrong, and say what collides."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aiolocks import LockManager, testing
from aiolocks.testing import HistoryEvent, check_exclusion, check_fencing, check_linearizable, check_residue
from tests.support.cases import one_by_one


def acquired(
    at: int, pid: int, fence: int, *, asked: int | None = None, permits: int = 1, name: str = "n"
) -> HistoryEvent:
    return HistoryEvent(at, pid, "acquired", f"t{fence}", fence, name, permits, asked)


def ended(at: int, pid: int, fence: int, event: str = "released", *, name: str = "n") -> HistoryEvent:
    return HistoryEvent(at, pid, event, f"t{fence}", fence, name)


def wrote(at: int, fence: int, event: str = "accepted") -> HistoryEvent:
    return HistoryEvent(at, fence, event, f"t{fence}", fence, "n")


def limit(at: int, *, permits: int) -> HistoryEvent:
    return HistoryEvent(at, 0, "limit", name="n", permits=permits)


def without(at: int, event: str = "busy", *, asked: int, permits: int = 1) -> HistoryEvent:
    """A call that ended without a lease."""
    return HistoryEvent(at, 9, event, name="n", permits=permits, asked_ns=asked)


ONE_AFTER_THE_OTHER = [acquired(1, 1, 10, asked=0), ended(3, 1, 10), acquired(3, 2, 11, asked=2), ended(5, 2, 11)]


def test_a_clean_history_passes_every_checker() -> None:
    history = [*ONE_AFTER_THE_OTHER, wrote(2, 10), wrote(4, 11)]
    assert check_exclusion(history) == check_fencing(history) == check_linearizable(history) == []
    assert testing.check_ended(history) == []
    (unended,) = testing.check_ended(history[:1])
    assert "fencing token 10" in unended
    assert testing.stale_writes(history) == 0


def test_c1_names_what_collides() -> None:
    (text,) = check_exclusion([acquired(1_000_000_000, 1, 10), acquired(2_000_000_000, 2, 11), ended(3, 9, 9)])
    assert "process 1 acquired 'n' with fencing token 10 at 1.000000" in text
    assert "process 2 acquired 'n' with fencing token 11 at 2.000000" in text
    permits = [acquired(1, 1, 10, permits=2), acquired(2, 2, 11)]
    assert check_exclusion(permits, {"n": 3}) == []
    (text,) = check_exclusion(permits, {"n": 2})
    assert "more than 2 permits" in text
    assert "fencing token 10, 2 permits" in text


KILLED = HistoryEvent(5, 1, "killed")
INNER = [acquired(2, 2, 11), ended(3, 2, 11), acquired(4, 3, 12), ended(5, 3, 12)]
GROWN = [acquired(1, 1, 10), limit(2, permits=2), acquired(3, 2, 11)]
SHRUNK = [acquired(1, 1, 10), acquired(2, 2, 11), limit(3, permits=1)]

OVERLAPS: dict[str, tuple[list[HistoryEvent], int | None, int]] = {
    "each pair counts": ([acquired(1, 1, 10), acquired(2, 2, 11), acquired(3, 3, 12)], None, 3),
    "one may begin when another ends": (ONE_AFTER_THE_OTHER, None, 0),
    "or is lost": ([acquired(1, 1, 10), ended(2, 1, 10, "lost"), acquired(2, 2, 11)], None, 0),
    "all holds of a killed process have ended": ([acquired(1, 1, 10), KILLED, acquired(6, 2, 11)], None, 0),
    "a killed process holds until its death was seen": ([acquired(1, 1, 10), acquired(4, 2, 11), KILLED], None, 1),
    "two of one process": ([acquired(1, 1, 10), acquired(2, 1, 11), ended(3, 1, 10), ended(4, 1, 11)], None, 1),
    "each that another encloses": ([acquired(1, 1, 10), *INNER, ended(6, 1, 10)], None, 2),
    "in whatever order the lines are": ([*ONE_AFTER_THE_OTHER[::-1]], None, 0),
    "names are apart": ([acquired(1, 1, 10), acquired(2, 2, 10, name="other")], None, 0),
    "a limit that grew": (GROWN, None, 0),
    "a limit that shrank ends no lease": (SHRUNK, 2, 0),
    "a limit that shrank counts for what comes": ([*SHRUNK, ended(4, 1, 10), acquired(5, 3, 12)], 2, 1),
    "the limit at the time of asking": ([SHRUNK[0], SHRUNK[2], acquired(4, 2, 11, asked=2)], 2, 0),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_c1_counts_overlaps(case: str) -> None:
    history, limit, overlaps = OVERLAPS[case]
    assert len(check_exclusion(history, limit) if limit else check_exclusion(history)) == overlaps


def test_c2_sees_an_older_token_after_a_newer_one_and_two_leases_that_share_one() -> None:
    (text,) = check_fencing([wrote(1, 11), wrote(2, 10)])
    assert "fencing token 11" in text
    assert "fencing token 10" in text
    assert len(check_fencing([acquired(1, 1, 10), HistoryEvent(2, 2, "acquired", "another", 10, "n")])) == 1
    refused = [wrote(1, 11), wrote(2, 10, "refused")]
    assert (check_fencing(refused), testing.stale_writes(refused)) == ([], 1)


def test_c3_names_what_contradicts_each_other() -> None:
    for exclusive in (True, False):
        (text,) = check_linearizable(LATER_WITH_A_SMALLER_TOKEN, exclusive=exclusive)
        assert "fencing token 10" in text
        assert "fencing token 11" in text
    for event in ("busy", "timeout"):
        (text,) = check_linearizable([*ONE_AFTER_THE_OTHER, without(900, event, asked=800)], free_after=100e-9)
        assert f"process 9 {event} 'n'" in text


LATER_WITH_A_SMALLER_TOKEN = [
    acquired(1, 1, 11, asked=0), ended(2, 1, 11), acquired(4, 2, 10, asked=3), ended(5, 2, 10),
]  # fmt: skip
SIDE_BY_SIDE = [acquired(1, 1, 10, asked=0), acquired(2, 2, 11, asked=0), ended(3, 1, 10), ended(4, 2, 11)]
TWO, END, ONE = acquired(1, 1, 10, asked=0, permits=2), ended(3, 1, 10), acquired(2, 2, 11, asked=0)
ONE_OF_TWO, SECOND = acquired(1, 1, 10, asked=0), acquired(4, 2, 11, asked=2)
BUSY = without(900, asked=800)
FREED: dict[str, Any] = {"free_after": 100e-9}

LINEARIZABLE: dict[str, tuple[list[HistoryEvent], dict[str, Any], int]] = {
    "a request that came after the end of another": (
        [acquired(5, 1, 11, asked=0), ended(5, 1, 11), acquired(6, 2, 10, asked=1)], {}, 1,
    ),
    "requests at the same time": ([acquired(5, 2, 10, asked=1), ended(5, 2, 10), acquired(6, 1, 11, asked=0)], {}, 0),
    "holds side by side": (SIDE_BY_SIDE, {}, 1),
    "where they do not exclude each other": (SIDE_BY_SIDE, {"exclusive": False}, 0),
    "where there are two permits": (SIDE_BY_SIDE, {"limits": 2}, 0),
    "more permits than there are": ([TWO, ONE, END], {"limits": 2}, 1),
    "the largest limit since asking": ([ONE_OF_TWO, SECOND, limit(3, permits=1)], {"limits": 2}, 0),
    "permits that were returned": ([TWO, END, acquired(3, 2, 11, asked=0)], {"limits": 2}, 0),
    "refusals are not judged": ([*ONE_AFTER_THE_OTHER, BUSY], {}, 0),
    "nor without exclusion": ([*ONE_AFTER_THE_OTHER, BUSY], {**FREED, "exclusive": False}, 0),
    "refused for a lease": ([acquired(810, 1, 10, asked=805), ended(820, 1, 10), BUSY], FREED, 0),
    "for a release on its way": ([acquired(600, 1, 10, asked=599), ended(750, 1, 10), BUSY], FREED, 0),
    "for a holder that learns of it later": ([acquired(950, 1, 10, asked=850), ended(960, 1, 10), BUSY], FREED, 0),
    "for a killed holder": ([acquired(600, 1, 10, asked=599), HistoryEvent(750, 1, "killed"), BUSY], FREED, 0),
    "for a lease without an end": ([acquired(600, 1, 10, asked=599), BUSY], FREED, 0),
    "for a lease without a recorded request": ([acquired(950, 1, 10), BUSY], FREED, 0),
    "for a call that failed": ([without(850, "failed", asked=820), BUSY], FREED, 0),
    "for a call that failed shortly before": ([without(790, "failed", asked=780), BUSY], FREED, 0),
    "for a call in line": (
        [acquired(1, 1, 10, asked=0), ended(990, 1, 10), without(850, "timeout", asked=820), BUSY], FREED, 0,
    ),
    "not for another name, nor for another refusal": (
        [acquired(1, 1, 10, asked=0, name="other"), BUSY, without(901, asked=801)], FREED, 2,
    ),
    "for too few free permits": ([TWO, without(900, asked=800, permits=2)], {**FREED, "limits": 3}, 0),
    "not for enough": ([TWO, BUSY], {**FREED, "limits": 3}, 1),
    "for a limit that shrank": ([TWO, BUSY, limit(850, permits=2)], {**FREED, "limits": 3}, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", LINEARIZABLE)
def test_c3_counts_what_is_not_possible(case: str) -> None:
    history, options, errors = LINEARIZABLE[case]
    assert len(check_linearizable(history, **options)) == errors


GUARDED = b"g:0123456789abcdef0123456789abcdef"
WRITE = b"0123456789abcdef0123456789abcdef:"

RESIDUE = [
    b"lock:{n}:fence", b"lock:{n}:t:token", b"semaphore:{n}:meta", b"hierarchy:{shop}/orders/42:meta",
    b"once:{n}:kept", b"once:{n}:newest", b"quorum:{n}:agreed", b"lock:{n}:ticket", b"lock:{n}:" + GUARDED,
    b"semaphore:{n}:" + GUARDED,
    b"hierarchy:{shop}/orders/42:" + GUARDED, b"versioned:{stock:42}", b"versioned:" + WRITE + b"{stock:42}",
    b"versioned:tagged:user:{42}", b"versioned:tagged:user:{42}:cart", b"versioned:tagged:{42}}:q:x",
    b"versioned:" + WRITE + b"user:{42}:cart",
]  # fmt: skip

LIVE = [
    b"aiolocks:lock:{n}", b"aiolocks:lock:{n}:queue", b"aiolocks:lock:{n}:q:session",
    b"aiolocks:hierarchy:{shop}/orders", b"aiolocks:lock:{a:versioned:b}", b"aiolocks:lock:{:fence}",
    b"versioned:lock:{n}", b"aiolocks:lock:{versioned:}:q:g:1", b"aiolocks:semaphore:{n}:q:t:1",
    b"aiolocks:versioned:x:{n}",
]  # fmt: skip


@pytest.mark.parametrize("prefix", [b"aiolocks:", b"", b"shop", b"a:versioned:"])
@one_by_one("key", RESIDUE)
def test_c4_lets_residue_stay_for_a_while(prefix: bytes, key: bytes) -> None:
    assert check_residue({prefix + key: 60_000}) == []
    assert "for ever" in check_residue({prefix + key: -1})[0]


@one_by_one("key", LIVE)
def test_c4_sees_holders_and_queues_whatever_their_names(key: bytes) -> None:
    (text,) = check_residue({key: 60_000, b"aiolocks:lock:{n}:fence": 60_000})
    assert repr(key) in text


def test_a_token_acquired_twice_is_no_history() -> None:
    with pytest.raises(ValueError, match="acquired twice"):
        check_exclusion([acquired(1, 1, 10), acquired(2, 1, 10)])


async def record_two(path: Path) -> None:
    recorder = testing.Recorder(path)
    async with LockManager.from_url("memory://") as locks:
        for _ in range(2):
            asked = time.monotonic_ns()
            async with locks.lock("orders:42") as lease:
                recorder.record("acquired", lease, asked_ns=asked)
                recorder.record("accepted", lease)
                recorder.record("released", lease)
    recorder.close()


async def leave_all_residue(prefix: str) -> dict[bytes, int]:
    """Use everything that leaves something, and return what is left."""
    async with LockManager.from_url("memory://", prefix=prefix) as locks:
        for acquirable in (
            locks.lock("orders:42"), locks.semaphore("orders:42", 2), locks.multilock(["a", "b"]), locks.rlock("}{:g:"),
            locks.rwlock("orders:42").write, locks.hierarchical("shop/orders/4:2").read,
        ):  # fmt: skip
            async with acquirable as lease:
                await lease.guard(("SET", "k", "v"))
        for key in ("stock:42", "user:{42}:cart", "{a}}", "}{"):
            await locks.versioned(key).update(lambda _: b"17")
        return await testing.keys_left(locks.client, prefix)


@pytest.mark.parametrize("prefix", ["aiolocks:", "shop"])
def test_what_every_primitive_leaves_is_residue(prefix: str) -> None:
    left = asyncio.run(leave_all_residue(prefix))
    assert check_residue(left) == []
    assert len(left) > 20


def test_recordings_of_real_leases_are_read_back_and_pass(tmp_path: Path) -> None:
    asyncio.run(record_two(tmp_path / "history.jsonl"))
    with open(tmp_path / "history.jsonl", "ab") as log:
        log.write('{"monotonic_ns": 1, "pid": 1, "event": "alive", "name": "ü'.encode()[:-1])  # another writes it still
    history = testing.read_history(tmp_path / "history.jsonl")
    assert [event.event for event in history] == 2 * ["acquired", "accepted", "released"]
    assert {event.name for event in history} == {"orders:42"}
    assert check_exclusion(history) == check_fencing(history) == check_linearizable(history) == []
