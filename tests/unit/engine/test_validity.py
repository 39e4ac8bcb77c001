"""The validity of a lease as a table: what it says of itself, by the clock and by how it ended."""

from types import SimpleNamespace

import pytest

from aiolocks._engine.lease_state import MOVES, REVOKED, End, Share, Validity


class Session:
    """The clock of a session, which a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.forked = False

    def clock(self) -> float:
        return self.now


def lasting(session: Session, max_hold: float | None = None, of: Validity | None = None) -> Validity:
    terms = SimpleNamespace(valid_for=9.0, ttl=10.0)
    if of is not None:
        return Share(of, terms, 0.0, max_hold)  # type: ignore[arg-type]
    return Validity(session, 0.0, terms, 0.0, max_hold)  # type: ignore[arg-type]  # a clock and `forked` are enough


@pytest.mark.parametrize(("now", "end", "held", "lost"), [
    (0.0, None, True, False), (8.9, None, True, False), (9.0, None, False, True), (1.0, End.RELEASED, False, False),
    (9.0, End.RELEASED, False, False), (1.0, End.HANDED_OFF, False, False), (1.0, End.LOST, False, True),
    (1.0, End.REVOKED, False, True), (1.0, End.FORKED, False, True),
])  # fmt: skip
def test_it_is_held_or_lost_by_the_clock_and_by_its_end(now: float, end: End | None, held: bool, lost: bool) -> None:
    session = Session()
    validity = lasting(session)
    if end is not None:
        validity.finish(end, "a reason")
    session.now = now
    assert (validity.held, validity.lost, validity.end) == (held, lost, end)
    assert repr(validity) == f"<Validity {end.value if end else 'held' if held else 'lost'}>"


def test_every_end_is_final() -> None:
    assert MOVES[None] == tuple(End)
    assert not any(MOVES[end] for end in End)
    for first in End:
        for second in End:
            validity = lasting(Session())
            validity.finish(first)
            with pytest.raises(RuntimeError, match="cannot become"):
                validity.finish(second)
            assert validity.end is first


def test_a_renewal_moves_the_deadline_of_a_held_lease_forward_only() -> None:
    session = Session()
    validity = lasting(session)
    validity.extend(8.0)
    assert validity.deadline == 9.0
    validity.extend(12.0)
    assert validity.deadline == 12.0
    session.now = 12.0
    validity.extend(20.0)
    assert validity.deadline == 12.0


def test_a_fork_holds_nothing_and_says_so() -> None:
    session = Session()
    validity = lasting(session)
    session.forked = True
    assert (validity.held, validity.lost, validity.end) == (False, True, End.FORKED)
    assert "forked" in validity.reason


def test_a_thread_cuts_it_at_once_and_a_revoked_lease_keeps_others_out_for_its_ttl_all_the_same() -> None:
    validity = lasting(Session())
    on_server = validity.revoked_until()
    assert on_server > 9.0
    validity.cut(REVOKED)
    assert (validity.held, validity.lost, validity.reason) == (False, True, REVOKED)
    assert validity.revoked_until() == on_server


@pytest.mark.parametrize(("max_hold", "now", "said"), [(5.0, 9.0, "max_hold (5 s)"), (None, 9.0, "its 10 s TTL")])
def test_the_reason_is_what_ended_it(max_hold: float | None, now: float, said: str) -> None:
    session = Session()
    validity = lasting(session, max_hold)
    session.now = now
    assert said in validity.reason
    validity.finish(End.LOST, "its key was deleted")
    assert validity.reason == "its key was deleted"


def test_a_share_has_the_deadline_of_its_lease_and_an_end_of_its_own() -> None:
    session = Session()
    lease = lasting(session)
    share = lasting(session, of=lease)
    share.extend(15.0)
    assert lease.deadline == share.deadline == 15.0
    share.finish(End.RELEASED)
    assert lease.held
    assert not share.held
    other = lasting(session, of=lease)
    lease.finish(End.LOST, "its key was deleted")
    assert other.reason == "its key was deleted"
