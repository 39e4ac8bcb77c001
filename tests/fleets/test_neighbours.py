"""Two neighbouring versions share a Redis, whichever comes first: a fleet can be deployed step by step."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.faults.support.server_clock import NoShim, ServerClock
from tests.fleets.neighbours.peer import NEIGHBOUR, PATIENCE, RELEASED, REPOSITORY, Peer, PeerError, neighbour, peer
from tests.fleets.neighbours.worker import ALONE
from tests.support.kinds import complete, kinds_where
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.slow]

OLDER, NEWER = f"the older version, {NEIGHBOUR}", "this checkout"

_CALLED = complete(
    {
        "lock": "lock", "rlock": "rlock", "semaphore": "semaphore", "rwlock": "write lock",
        "multilock": "multilock", "hierarchy": "write row",
    },
    kinds_where(lambda kind: kind.queued),
)  # fmt: skip
"""What the workers of both versions call the kinds that have a queue."""

QUEUEING = tuple(_CALLED.values())
"""Kinds of which one lease excludes all others, and whose waiters stand in line."""

EXCLUSIVE = (*QUEUEING, "redlock")

SHARED = (("read lock", "write lock"), ("read row", "write row"), ("read row", "write table"))
"""Kinds whose leases go together, and those that must be alone beside them."""

each_queueing_kind = pytest.mark.parametrize("kind", QUEUEING)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Three servers, of which a Redlock needs all, and all other kinds the first."""
    with ExitStack() as stack:
        started = [RedisServer() for _ in range(3)]
        for each in started:
            stack.callback(each.stop)
        yield [each.url for each in started]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, urls: list[str]) -> Iterator[Callable[[str], Peer]]:
    """Starts a process of a version."""
    packages = {OLDER: neighbour(tmp_path_factory.mktemp("neighbour")), NEWER: REPOSITORY}
    with ExitStack() as stack:
        yield lambda version: stack.enter_context(peer(version, packages[version], *urls))


@pytest.fixture(scope="module")
def both(start: Callable[[str], Peer]) -> dict[str, Peer]:
    return {version: start(version) for version in (OLDER, NEWER)}


@pytest.fixture
def older(both: dict[str, Peer]) -> Peer:
    return both[OLDER]


@pytest.fixture
def newer(both: dict[str, Peer]) -> Peer:
    return both[NEWER]


@pytest.fixture(params=[(OLDER, NEWER), (NEWER, OLDER)], ids=["older-first", "newer-first"])
def order(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    return chosen


@pytest.fixture
def first(both: dict[str, Peer], order: tuple[str, str]) -> Peer:
    return both[order[0]]


@pytest.fixture
def second(both: dict[str, Peer], order: tuple[str, str]) -> Peer:
    return both[order[1]]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, urls: list[str]) -> Iterator[Peer]:
    with peer(RELEASED, neighbour(tmp_path_factory.mktemp("released"), RELEASED), *urls) as started:
        yield started


@pytest.fixture(params=[True, False], ids=["released-first", "newer-first"])
def two(request: pytest.FixtureRequest, released: Peer, newer: Peer) -> tuple[Peer, Peer]:
    return (released, newer) if request.param else (newer, released)


@pytest.fixture(scope="module")
def stepping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerClock, dict[str, Peer]]]:
    """The clock of a server, and two processes of this checkout and one of the older version, its clients."""
    try:
        clock = ServerClock(tmp_path_factory.mktemp("clock"))
    except NoShim as missing:
        pytest.skip(str(missing))
    older = neighbour(tmp_path_factory.mktemp("neighbour"))
    with ExitStack() as stack:
        stack.enter_context(closing(clock))
        server = RedisServer(environment=clock.environment)
        stack.callback(server.stop)
        packages = {"older": older, "one": REPOSITORY, "other": REPOSITORY}
        yield clock, {who: stack.enter_context(peer(who, at, server.url)) for who, at in packages.items()}


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"orders:{next(_numbers)}"


def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up_at, f"never came: {what}"
        time.sleep(0.005)


def waiting(asked: Peer, kind: str, name: str, count: int) -> None:
    until(lambda: asked("state", kind, name)[1] == count, f"{count} waiters for {kind} {name}")


def make_reachable(waiter: Peer, holder: Peer, kind: str, name: str) -> None:
    """Let *waiter* wait once: from then on its session is subscribed, and no newcomer passes it (W2)."""
    lease, _ = holder("acquire", kind, name)
    turn = waiter.ask("turn", kind, name)
    waiting(holder, kind, name, 1)
    assert holder("release", lease)
    turn.result(PATIENCE)


def held(asked: Peer, kind: str, name: str) -> None:
    until(lambda: asked("state", kind, name)[0] == 1, f"a holder of {kind} {name}")


def knows(asked: Peer, name: str, pids: list[list[int]]) -> bool:
    return bool(asked("known", "lock", name) == pids)


def rise(fences: list[list[int]]) -> bool:
    """Whether the fencing tokens of each name rise from lease to lease."""
    return all(
        before < after for one, next_one in pairwise(fences) for before, after in zip(one, next_one, strict=True)
    )


def one_after_the_other(turns: list[Any]) -> bool:
    return all(before[1] <= after[0] for before, after in pairwise(turns))


def most_permits(intervals: list[Any]) -> int:
    """Return the most permits that were held at one instant."""
    changes = [(began, permits) for began, _, permits, _ in intervals]
    changes += [(ended, -permits) for _, ended, permits, _ in intervals]
    depth = deepest = 0
    for _, change in sorted(changes):  # at one instant, ends come first
        depth += change
        deepest = max(deepest, depth)
    return deepest


def assert_free(kind: str, name: str, *peers: Peer) -> None:
    """Nothing is left: each process gets the name at once."""
    for one in peers:
        assert one("state", kind, name)[:2] == [0, 0]
        lease, _ = one("try_acquire", kind, name)
        assert one("release", lease)


@each_queueing_kind
def test_waiters_of_two_versions_are_served_in_their_order(first: Peer, second: Peer, kind: str, name: str) -> None:
    lease, fences = first("acquire", kind, name)
    turns = []
    for asking in (second, first, second, second, first, first):
        turns.append(asking.ask("turn", kind, name))
        waiting(first, kind, name, len(turns))
        assert first("try_acquire", kind, name) is None
        assert second("try_acquire", kind, name) is None
    assert first("release", lease)
    served = [turn.result(PATIENCE) for turn in turns]
    assert one_after_the_other(served)
    assert rise([fences, *(turn[3] for turn in served)])
    assert_free(kind, name, first, second)


def test_plain_locks_of_two_versions_exclude_each_other_in_order(first: Peer, second: Peer, name: str) -> None:
    lease = first("plain_acquire", name)
    turns = []
    for asking in (second, first, second, second, first, first):
        turns.append(asking.ask("plain_turn", name))
        until(lambda: first("plain_waiting", name) == len(turns), f"{len(turns)} waiters for {name}")
    first("release", lease)
    assert one_after_the_other([turn.result(PATIENCE) for turn in turns])
    second("release", second("plain_acquire", name))


@pytest.mark.parametrize(("shared", "alone"), SHARED)
def test_leases_that_go_together_and_leases_that_do_not_are_so_between_two_versions(
    first: Peer, second: Peer, shared: str, alone: str, name: str
) -> None:
    make_reachable(second, first, alone, name)
    one, _ = first("acquire", shared, name)
    other, _ = second("acquire", shared, name)
    turns = [second.ask("turn", alone, name)]
    waiting(first, alone, name, 1)
    assert first("try_acquire", shared, name) is None  # it would pass the one who waits
    for asking in (first, second):
        turns.append(asking.ask("turn", shared, name, 0.1))
        waiting(first, alone, name, len(turns))
    turns.append(first.ask("turn", alone, name))
    waiting(first, alone, name, 4)
    assert first("release", one)
    assert second("release", other)
    before, reading, also_reading, after = (turn.result(PATIENCE) for turn in turns)
    assert one_after_the_other([before, reading, after])
    assert one_after_the_other([before, also_reading, after])
    assert rise([before[3], after[3]])
    assert_free(alone, name, first, second)


def test_an_upgrade_waits_for_readers_of_the_other_version_and_a_downgrade_lets_them_in(
    first: Peer, second: Peer, name: str
) -> None:
    lease, _ = first("acquire", "upgradeable lock", name)
    reading, _ = second("acquire", "read lock", name)
    upgrade = first.ask("upgraded", lease)
    waiting(second, "write lock", name, 1)
    read = second.ask("turn", "read lock", name)
    waiting(second, "write lock", name, 2)
    released = time.monotonic_ns()
    assert second("release", reading)
    began, ended, _, _ = upgrade.result(PATIENCE)
    assert released < began
    assert ended <= read.result(PATIENCE)[0]
    assert first("release", lease)

    lease, _ = first("acquire", "write lock", name)
    read = second.ask("turn", "read lock", name)
    waiting(second, "write lock", name, 1)
    first("downgrade", lease)
    read.result(PATIENCE)
    assert first("held", lease)
    assert first("release", lease)
    assert_free("write lock", name, first, second)


def test_a_heavy_waiter_of_one_version_is_not_passed_by_light_ones(first: Peer, second: Peer, name: str) -> None:
    make_reachable(second, first, "lock", name)
    leases = [first("acquire", "permits", name)[0], first("acquire", "permits", name)[0]]
    heavy = second.ask("turn", "permits", name, permits=3)
    waiting(first, "permits", name, 1)
    assert first("try_acquire", "permits", name) is None  # one permit is free, and a waiter is ahead
    light = first.ask("turn", "permits", name)
    waiting(second, "permits", name, 2)
    for lease in leases:
        assert first("release", lease)
    assert one_after_the_other([heavy.result(PATIENCE), light.result(PATIENCE)])
    assert_free("permits", name, second, first)


def test_a_limit_that_one_version_sets_is_in_force_for_the_other(first: Peer, second: Peer, name: str) -> None:
    lease, _ = second("acquire", "permits", name)
    first("resize", "permits", name, 1)
    assert second("state", "permits", name) == [1, 0, 1]
    assert second("try_acquire", "permits", name) is None
    second("resize", "permits", name, 2)
    another, _ = first("try_acquire", "permits", name)
    assert second("release", lease)
    assert first("release", another)


def test_busy_processes_of_two_versions_never_meet_in_a_lock_and_go_on(first: Peer, second: Peer, name: str) -> None:
    names = {kind: (f"{name} {kind}", 1) for kind in EXCLUSIVE}
    shared = {"permits": (f"{name} permits", 2), "read lock": (f"{name} rw", 1), "read row": (f"{name} rows", 1)}
    alone = {"write lock": (f"{name} rw", ALONE), "write table": (f"{name} rows", ALONE)}
    asked = [one.ask("crowd", set_, 2, 1.0) for one in (first, second) for set_ in (names, shared, alone)]
    had = [each.result(PATIENCE) for each in asked]
    for kinds in had:
        for kind, intervals in kinds.items():
            assert len(intervals) >= 2, f"{kind} was had {len(intervals)} times"
    for kind in EXCLUSIVE:
        turns = sorted(had[0][kind] + had[3][kind])
        assert one_after_the_other(turns), kind
        assert rise([turn[3] for turn in turns]), kind
    assert most_permits(had[1]["permits"] + had[4]["permits"]) <= 3
    for reading, writing in (("read lock", "write lock"), ("read row", "write table")):
        everything = [*had[1][reading], *had[4][reading], *had[2][writing], *had[5][writing]]
        assert most_permits(everything) == ALONE, f"{writing} beside {reading}, or never"
        assert rise([turn[3][-1:] for turn in sorted(had[2][writing] + had[5][writing])])
    for kind in (*EXCLUSIVE, "permits"):
        assert_free(kind, f"{name} {kind}", first, second)


@pytest.mark.parametrize("kind", [*QUEUEING, "read lock"])
def test_a_lease_is_handed_on_from_one_version_to_the_other(first: Peer, second: Peer, kind: str, name: str) -> None:
    lease, fences = first("acquire", kind, name)
    text = first("hand_off", lease)
    adopted, later = second("adopt", kind, name, text)
    assert rise([fences, later])
    assert not first("held", lease)
    with pytest.raises(PeerError, match="LeaseLostError"):
        first("adopt", kind, name, text)
    back, latest = first("adopt", kind, name, second("hand_off", adopted))
    assert rise([later, latest])
    turn = second.ask("turn", "write lock" if kind == "read lock" else kind, name)
    waiting(first, kind, name, 1)
    assert first("release", back)
    assert rise([latest, turn.result(PATIENCE)[3]])


@pytest.mark.parametrize("kind", [*QUEUEING, "read lock"])
def test_what_the_older_version_hands_off_and_adopts_is_touched_and_dropped_by_the_newer(
    older: Peer, newer: Peer, kind: str, name: str
) -> None:
    """The older version cannot do that itself, and its adoption leaves no mark."""
    lease, fences = older("acquire", kind, name)
    text = older("hand_off", lease)
    assert newer("touch", kind, name, text) == max(fences)
    adopted, later = older("adopt", kind, name, text)
    assert rise([fences, later])
    assert newer("touch", kind, name, text) is None
    assert newer("drop", kind, name, text) is False
    assert older("held", adopted)
    turn = older.ask("turn", "write lock" if kind == "read lock" else kind, name)
    waiting(newer, kind, name, 1)
    assert newer("drop", kind, name, older("hand_off", adopted)) is True
    assert rise([later, turn.result(PATIENCE)[3]])


def test_a_holder_of_one_version_stops_when_the_other_revokes_its_lease(
    order: tuple[str, str], first: Peer, second: Peer, name: str
) -> None:
    holding = {kind: first.ask("until_lost", kind, f"{name} {kind}", ttl=1.0) for kind in EXCLUSIVE}
    for kind in EXCLUSIVE:
        held(second, kind, f"{name} {kind}")
    next_one = {kind: second.ask("turn", kind, f"{name} {kind}") for kind in EXCLUSIVE}
    why = {"reason": "deploy 1.7"} if order[1] == NEWER else {}  # which the older version does not hear
    revoked = {kind: second.ask("revoke", kind, f"{name} {kind}", **why) for kind in EXCLUSIVE}
    for kind in EXCLUSIVE:
        fences = revoked[kind].result(PATIENCE)
        reason, ended = holding[kind].result(PATIENCE)
        turn = next_one[kind].result(PATIENCE)
        assert reason == "revoked", kind
        assert ended <= turn[0], kind
        assert fences, kind
        assert min(fences) < turn[3][0], kind


@pytest.mark.parametrize("kind", ["lock", "redlock", "permits", "write row"])
def test_a_note_of_the_newer_version_is_seen_by_it_alone_and_its_other_names_by_both(
    older: Peer, newer: Peer, kind: str, name: str
) -> None:
    turn = newer.ask("turn", kind, name, 2.0, note="May's report")
    until(lambda: newer("called", kind, name)[:1] not in ([], [[None, None]]), "what it is called")
    [task, note] = newer("called", kind, name)[0]
    assert note == "May's report"
    assert task.isprintable()
    assert older("called", kind, name)[0] == [task, None]
    turn.result(PATIENCE)
    turn = older.ask("turn", kind, name, 2.0, ttl=1.0)
    until(lambda: newer("called", kind, name)[:1] not in ([], [[None, None]]), "what it is called, after ttl / 3")
    assert newer("called", kind, name)[0][1] is None
    turn.result(PATIENCE)


def test_a_min_hold_of_one_version_keeps_the_other_out_until_it_is_over(first: Peer, second: Peer, name: str) -> None:
    asked = {}
    for kind in EXCLUSIVE:
        began, *_ = first("turn", kind, f"{name} {kind}", 0.0, min_hold=0.6)
        asked[kind] = began, second.ask("turn", kind, f"{name} {kind}")
    for kind, (began, turn) in asked.items():
        later, *_ = turn.result(PATIENCE)
        assert (later - began) / 1e9 > 0.5, kind
        assert_within((later - began) / 1e9, 0.6 + 0.5 * SLACK, kind)


def test_an_older_version_keeps_a_pinned_limit_and_its_declaration_ends_it(older: Peer, newer: Peer, name: str) -> None:
    lease, _ = older("acquire", "permits", name)
    newer("resize", "permits", name, 2, pin=True)
    assert [asked("state", "permits", name)[2] for asked in (older, newer)] == [2, 2]
    second_lease, _ = older("acquire", "permits", name)
    assert older("try_acquire", "permits", name) is None
    assert newer("try_acquire", "permits", name, limit=5) is None
    assert newer("state", "permits", name)[2] == 2, "what the newer version declares is ignored"
    assert older("release", lease)
    assert older("release", second_lease)
    until(lambda: newer("state", "permits", name)[0] == 0, "the end of all leases")
    newer("turn", "permits", name, limit=6)
    assert newer("state", "permits", name)[2] == 2, "the older version's scripts leave the pin"
    older("turn", "permits", name, limit=4)  # which ends it: that version knows no pins, as is said of `resize`
    assert newer("state", "permits", name)[2] == 4
    newer("turn", "permits", name, limit=7)
    assert [asked("state", "permits", name)[2] for asked in (older, newer)] == [7, 7]


def test_a_pause_of_the_newer_version_stops_the_older_too_which_may_end_it(older: Peer, newer: Peer, name: str) -> None:
    """Its holders go on, and its waiters go first when the pause ends, or is ended."""
    lease, _ = older("acquire", "permits", name, ttl=3.0)
    began = time.monotonic()
    assert newer("pause", "permits", name, 3.2) == 3.2
    assert older("try_acquire", "permits", name) is None
    turns = [asked.ask("turn", "permits", name) for asked in (older, newer)]
    waiting(older, "permits", name, 2)
    older("resize", "permits", name, 9)
    assert older("try_acquire", "permits", name) is None
    for turn in turns:
        assert turn.result(PATIENCE)[0] / 1e9 - began >= 3.19
    assert_within(time.monotonic() - began, 3.2 + SLACK * 1.1)
    assert older("held", lease)
    assert older("release", lease)
    newer("pause", "permits", name, 60)
    turn = older.ask("turn", "permits", name)
    waiting(newer, "permits", name, 1)
    assert newer("resume", "permits", name) is True
    turn.result(PATIENCE)
    newer("pause", "permits", name, 60)
    older("revoke", "permits", name)  # it takes a pause for a lease that cools, as is said of `pause`
    assert newer("resume", "permits", name) is False
    assert_free("permits", name, older, newer)


@pytest.mark.parametrize("kind", [_CALLED[name] for name in kinds_where(lambda kind: kind.guards and not kind.several)])
def test_one_versions_guard_is_refused_once_the_other_holds(first: Peer, second: Peer, kind: str, name: str) -> None:
    lease, _ = first("acquire", kind, name)
    assert first("guard", lease, "INCR", f"{name} counter") == 1
    assert first("guard", lease, "INCR", f"{name} counter") == 2
    adopted, _ = second("adopt", kind, name, first("hand_off", lease))
    with pytest.raises(PeerError, match="LeaseLostError"):
        first("guard", lease, "INCR", f"{name} counter")
    assert second("guard", adopted, "INCR", f"{name} counter") == 3
    assert second("release", adopted)


def test_a_value_that_two_versions_write_loses_none_and_takes_no_late_one(first: Peer, second: Peer, name: str) -> None:
    value, version = first("read", name)
    assert value is None
    written = first("write", name, "1", version)
    assert second("read", name) == ["1", written]
    assert second("write", name, "2", version) is None
    again = second("write", name, "2", written)
    assert first("write", name, "3", written) is None
    assert first("read", name) == ["2", again]
    for counting in [one.ask("count", name, 50) for one in (first, second)]:
        counting.result(PATIENCE)
    assert first("read", name)[0] == "102"


def test_each_version_says_which_processes_of_the_other_hold_and_wait(first: Peer, second: Peer, name: str) -> None:
    lease, _ = first("acquire", "lock", name, ttl=0.9)
    turn = second.ask("turn", "lock", name, ttl=0.9)
    waiting(first, "lock", name, 1)
    for asked in (first, second):  # what short leases write comes with their first renewal
        until(partial(knows, asked, name, [[first.pid], [second.pid]]), f"who holds and waits, from {asked}")
    assert first("release", lease)
    turn.result(PATIENCE)


def test_a_killed_holder_and_a_killed_waiter_of_one_version_do_not_strand_the_other(
    second: Peer, order: tuple[str, str], start: Callable[[str], Peer], name: str
) -> None:
    killed = start(order[0])
    for kind in QUEUEING:
        killed("acquire", kind, f"{name} {kind}", ttl=1.0)
        killed.ask("turn", kind, f"{name} {kind}", ttl=1.0)
        waiting(second, kind, f"{name} {kind}", 1)
    turns = {kind: second.ask("turn", kind, f"{name} {kind}") for kind in QUEUEING}
    for kind in QUEUEING:
        waiting(second, kind, f"{name} {kind}", 2)
    killed.end()
    killed_at = time.monotonic()
    for kind in QUEUEING:
        turns[kind].result(PATIENCE)
    assert_within(time.monotonic() - killed_at, 1.0 + 0.5 * SLACK)


@pytest.mark.parametrize("kind", ["lock", "semaphore", "write lock"])
def test_after_the_clock_stepped_back_waiters_keep_their_order_beside_an_older_version(
    stepping: tuple[ServerClock, dict[str, Peer]], kind: str, name: str
) -> None:
    """The older version does not know the newest ticket of others: only its own waiters may overtake."""
    clock, peers = stepping
    holder, _ = peers["older"]("acquire", kind, name)
    turns = []
    for asking in ("one", "older", "one", "one", "step", "other", "older", "other", "one"):
        if asking == "step":
            clock.step(-5.0)
        else:
            turns.append((asking, peers[asking].ask("turn", kind, name)))
            waiting(peers["other"], kind, name, len(turns))
    assert peers["older"]("release", holder)
    served = [(asking, turn.result(PATIENCE)) for asking, turn in turns]
    assert one_after_the_other(sorted(turn for _, turn in served))
    assert one_after_the_other([turn for asking, turn in served if asking != "older"])
    assert_free(kind, name, *peers.values())


@each_queueing_kind
def test_a_lease_goes_between_the_released_version_and_this(two: tuple[Peer, Peer], kind: str, name: str) -> None:
    """Handed off, touched, adopted and revoked, each by the other."""
    one, other = two
    lease, fences = one("acquire", kind, name, ttl=1.0)
    text = one("hand_off", lease)
    assert other("touch", kind, name, text) == max(fences)
    adopted, later = other("adopt", kind, name, text, ttl=1.0)
    assert rise([fences, later])
    assert other("drop", kind, name, text) is False
    turns = [asking.ask("turn", kind, name) for asking in two]
    waiting(one, kind, name, 2)
    revoked = one("revoke", kind, name, reason="deploy 1.7")
    assert revoked
    assert set(revoked) <= set(later)
    assert not other("held", adopted)
    assert one_after_the_other(sorted(turn.result(PATIENCE) for turn in turns))
    assert_free(kind, name, *two)


def test_a_queue_full_of_waiters_of_both_versions_refuses_those_of_either(two: tuple[Peer, Peer], name: str) -> None:
    lease, _ = two[0]("acquire", "lock", name)
    turns = []
    for asking in two:
        turns.append(asking.ask("turn", "lock", name, max_waiting=2))
        waiting(two[1], "lock", name, len(turns))
    for asking in two:
        with pytest.raises(PeerError, match="QueueFullError"):
            asking("turn", "lock", name, max_waiting=2)
    assert two[0]("release", lease)
    assert one_after_the_other([turn.result(PATIENCE) for turn in turns])


def test_a_pause_and_a_pin_of_one_version_count_for_the_other(two: tuple[Peer, Peer], name: str) -> None:
    one, other = two
    one("resize", "permits", name, 1, pin=True)
    other("turn", "permits", name, limit=3)
    assert [asked("state", "permits", name)[2] for asked in two] == [1, 1]
    one("pause", "permits", name, 60)
    turn = other.ask("turn", "permits", name)
    waiting(one, "permits", name, 1)
    assert other("try_acquire", "permits", name) is None
    assert other("resume", "permits", name) is True
    turn.result(PATIENCE)
    assert_free("permits", name, *two)


def test_an_election_an_outcome_and_a_rate_are_those_of_both_versions(two: tuple[Peer, Peer], name: str) -> None:
    terms = [asking.ask("lead", name) for asking in (*two, *two)]
    served = sorted(term.result(PATIENCE) for term in terms)
    assert one_after_the_other(served)
    assert rise([term[3] for term in served])
    outcomes = [asking.ask("once", name) for asking in (*two, *two)]
    [ran_in] = {outcome.result(PATIENCE) for outcome in outcomes}
    assert ran_in in [asked.pid for asked in two]
    asked = [asking.ask("starts", name, 6, 4, 0.5) for asking in two]
    starts = sorted(start for each in asked for start in each.result(PATIENCE))
    assert min(late - early for early, late in zip(starts, starts[4:], strict=False)) >= 0.5
