"""Fencing tokens that several servers agree on: what each accepts and refuses."""

import time
from typing import Any

import pytest
from redis import Redis

from aiolocks._redis.scripts import load
from tests.scripts.calls import DAY_MS


def propose(backend: Redis, token: str, number: int) -> int:
    answer: int = backend.eval(load("redlock/raise").source, 2, "agreed", "fence", token, number)  # type: ignore[arg-type]  # redis-py knows no bytes here
    return answer


def test_the_same_token_is_refused_to_another_caller(backend: Redis) -> None:
    propose(backend, "one", 7)
    assert propose(backend, "two", 7) == 7


def test_what_was_accepted_is_kept_for_a_day(backend: Redis) -> None:
    propose(backend, "one", 7)
    for key in ("agreed", "fence"):
        left = backend.pttl(key)
        assert isinstance(left, int)
        assert DAY_MS - 5000 < left <= DAY_MS


def test_statistics_tell_whether_it_is_held_and_the_last_token_that_was_accepted(backend: Redis) -> None:
    def told() -> Any:
        return backend.eval(load("redlock/statistics").source, 2, "agreed", "holder")  # type: ignore[arg-type]

    assert told() == [0, 0, 0]
    propose(backend, "one", 1_763_733_600_000_000)
    assert told() == [0, 1_763_733_600_000_000, 0]
    backend.set("holder", "one 7")
    assert told() == [1, 1_763_733_600_000_000, 0]
    backend.set("holder", "one 7 C", px=60_000)
    *taken, kept_until_ms = told()
    assert taken == [1, 1_763_733_600_000_000]
    assert 50 < kept_until_ms / 1000 - time.time() <= 60


# Who holds it, and revoking that: only what was said to be meant.

OWN = b"0123456789abcdefghijkl"
HELD = b"session-one" + OWN + b" 7"


def holders(backend: Redis) -> list[object]:
    answer: list[object] = backend.eval(load("redlock/holders").source, 2, "agreed", "holder")  # type: ignore[arg-type]
    return answer


def revoke(backend: Redis, *meant: bytes, tombstone_ms: int = 0, reason: str = "") -> list[object]:
    keys = "agreed", "holder"
    answer: list[object] = backend.eval(load("redlock/revoke").source, 2, *keys, tombstone_ms, reason, *meant)  # type: ignore[arg-type]
    return answer


def test_no_holder_is_told_of_where_there_is_none(backend: Redis) -> None:
    assert holders(backend) == [0]
    assert revoke(backend) == [b"", 0, 0]
    assert revoke(backend, OWN) == [b"", 0, 0]
    assert backend.exists("holder") == 0


def test_a_holder_is_told_of_with_the_fencing_token_that_was_accepted_of_it(backend: Redis) -> None:
    backend.set("holder", HELD, px=5_000)
    taken, holder, fence, left, *_ = holders(backend)
    assert (taken, holder, fence) == (0, b"session-one" + OWN, b"7")
    assert isinstance(left, int)
    assert 4_000 < left <= 5_000
    propose(backend, "session-two" + OWN.decode(), 9)
    assert holders(backend)[2] == b"9", "asked in another session, it is the same holder"


def test_a_lease_that_was_released_before_is_no_holder(backend: Redis) -> None:
    """`min_hold` keeps the name for a while."""
    backend.set("holder", HELD + b" C", px=5_000)
    assert holders(backend) == [0]
    assert revoke(backend)[2] == 0


def test_a_revoked_lease_of_a_quorum_is_marked_and_lasts_as_long_as_before(backend: Redis) -> None:
    backend.set("holder", HELD, px=5_000)
    for _ in range(2):
        own, _, left = revoke(backend, b"another", OWN)
        assert own == OWN
        assert isinstance(left, int)
        assert 4_000 < left <= 5_000
        assert backend.get("holder") == HELD + b" R"
        assert 4_000 < int(backend.pttl("holder")) <= 5_000


@pytest.mark.parametrize("tombstone_ms", [0, 60_000])
def test_the_reason_of_a_revoked_lease_of_a_quorum_is_kept_for_its_holder(backend: Redis, tombstone_ms: int) -> None:
    backend.set("holder", HELD, px=5_000)
    revoke(backend, OWN, tombstone_ms=tombstone_ms, reason="deploy 1.7")
    assert backend.get(b"holder:r:session-one" + OWN) == b"Rdeploy 1.7"


def test_a_lease_of_a_quorum_that_is_not_revoked_is_left_alone(backend: Redis) -> None:
    backend.set("holder", HELD, px=5_000)
    assert revoke(backend)[0] == OWN
    assert revoke(backend, OWN[::-1], tombstone_ms=60_000)[0] == OWN
    assert backend.get("holder") == HELD


def test_by_force_it_ends_at_once_and_its_token_is_granted_nothing_more(backend: Redis) -> None:
    for mark in (b"", b" R", b" C"):
        backend.set("holder", HELD + mark, px=5_000)
        assert revoke(backend, OWN, tombstone_ms=60_000) == [b"", 0, 0]
        assert backend.exists("holder") == 0
        assert backend.get(b"holder:t:session-one" + OWN) == b"R"
