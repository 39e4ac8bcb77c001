"""Handing over to those in line: to whom, for how long, and how they are told."""

from typing import Literal

import pytest
from redis import Redis

from aiolocks._core.modes import EXCLUSIVE, SHARED
from tests.scripts.calls import TTL, Grant, Scripts, poller, token, told_either_way
from tests.scripts.states import fence_of, holders, lapse, line, listening, sessions

pytestmark = told_either_way


def test_a_waiter_of_the_releasing_session_is_told_in_the_reply(held: Scripts) -> None:
    held.queued("ben", ttl_ms=90_000)
    with listening(held, "home") as inbox:
        assert held.release("ann").mine == [Grant("ben", fence_of(held, "ben"), 90_000)]
        assert inbox.texts() == []
    assert holders(held) == {"ben": pytest.approx(90_000, abs=1_000)}
    assert sessions(held) == line(held) == [], "it waits no more"


def test_a_waiter_of_another_session_is_told_by_one_message(held: Scripts) -> None:
    held.queued("ben", session="away")
    held.queued("cat", session="third")
    with listening(held, "away") as inbox, listening(held, "home") as home, listening(held, "third") as third:
        assert held.release("ann").mine == []
        assert inbox.texts() == [b"%b %d %d %b" % (token("ben"), fence_of(held, "ben"), TTL, held.keys.base)]
        assert home.texts() == third.texts() == []
    assert list(holders(held)) == ["ben"]


@pytest.mark.parametrize("ttl_ms", [5_000, 90_000])
def test_the_lease_lasts_as_long_as_the_waiter_asked_for(held: Scripts, ttl_ms: int) -> None:
    """W4: the ttl of the releaser says nothing about it."""
    held.queued("ben", session="away", ttl_ms=ttl_ms)
    with listening(held, "away") as inbox:
        held.release("ann")
        assert [message.amount for message in inbox.messages()] == [ttl_ms]
    assert ttl_ms - 1_000 < holders(held)["ben"] <= ttl_ms


def test_sessions_take_turns_in_the_order_of_asking(held: Scripts) -> None:
    places = [("ben", "home"), ("cat", "away"), ("dan", "home"), ("eve", "third"), ("fay", "away"), ("gil", "home")]
    for who, session in places:
        held.queued(who, session=session)
    served, holder = [], "ann"
    with listening(held, "away"), listening(held, "third"):
        for _ in places:
            held.release(holder)
            [holder] = holders(held)
            served.append(holder)
    assert served == [who for who, _ in places]


@pytest.mark.parametrize(("ttl_ms", "most"), [(TTL, 10_000), (7_000, 7_000)])
def test_a_polling_session_is_not_told_and_has_two_intervals_to_look(held: Scripts, ttl_ms: int, most: int) -> None:
    """W11: what it does not notice costs the others no more than that."""
    held.queued("ben", session=poller(5_000), ttl_ms=ttl_ms)
    with listening(held, poller(5_000)) as inbox:
        held.release("ann")
        assert inbox.texts() == []
    assert most - 2_000 < holders(held)["ben"] <= most


@pytest.mark.parametrize("kind", ["semaphore", "rwlock"])
def test_a_waiter_in_two_lines_keeps_the_longer_lease(
    backend: Redis, kind: Literal["semaphore", "rwlock"], sharded: bool
) -> None:
    """P3: it stands in both while it goes back from polling and what leaves the old line comes late."""
    several = Scripts(backend, kind, limit=2, sharded=sharded)
    alone, beside = (2, 1) if kind == "semaphore" else (EXCLUSIVE, SHARED)
    several.granted("ann", permits=alone)
    with listening(several, "away"):
        several.queued("ben", session="away", permits=beside)
        several.queued("ben", session=poller(250), permits=beside)
        several.release("ann", permits=alone)
        assert sessions(several) == []
    assert holders(several)["ben"] > TTL - 1_000


def test_a_waiter_that_is_granted_by_its_former_line_has_the_lease_in_full_and_waits_no_more(held: Scripts) -> None:
    """P1, W15: a poller is granted a short lease, but here the reply brings it to the waiter at once."""
    held.queued("ben", session=poller(250))
    lapse(held, "ann")
    held.granted("ben")
    assert holders(held) == {"ben": pytest.approx(TTL, abs=1_000)}
    assert sessions(held) == line(held) == []
