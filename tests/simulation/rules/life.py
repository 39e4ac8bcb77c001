"""W3 and W6: how long a silent session is taken for alive, and how soon a waiter asks again."""

from tests.simulation.planting import instead, never
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import LOCK, clause


@clause(
    "W3",
    instead("W3-life", "return name, channels, round(12_000 * interval)"),
    instead("W3-interval", "return min(1.0, ttl)"),
)
def a_stopped_process_costs_one_lease_however_many_wait_in_it(scene: Scene) -> None:
    """W3: three of its waiters are first in line; once the lease of the first has lapsed, its session is dead."""
    owner, stopped, waiter = scene.program(), scene.program(), scene.program()
    holding = scene.take(owner, "a", 0.0, 1.0, ttl=2.0)
    for _ in range(3):
        scene.take(stopped, "a", 0.1, 0.1, ttl=2.0)
    visit = scene.take(waiter, "a", 0.5, 0.1, ttl=2.0)
    scene.world.at(0.9, lambda: stopped.process.stop(suspend=False))
    scene.until(9.0)
    assert holding.ended is not None
    assert visit.began is not None
    assert 2.0 < visit.began - holding.ended < 2.3


@clause(
    "W3",
    instead("W3-shortest", "self._look_every(recheck_interval(request.ttl))"),
)
def the_shortest_ttl_awaited_says_how_often_a_session_shows_life(scene: Scene) -> None:
    """W3: or a turn of that TTL would outlast its session's lease."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 3.0)
    for at, ttl in ((0.1, 30.0), (0.2, 0.8), (0.2, 30.0)):
        scene.take(waiter, "a", at, 0.0, ttl=ttl)
    scene.until(2.0)
    assert {request.args["life_ms"] for request in scene.seen("recheck", since=0.4)} == {b"600"}


@clause("W3", instead("W3-told", "return True"), kinds=LOCK)
def a_newcomer_whose_ttl_is_shorter_than_all_others_has_its_line_s_life_set(scene: Scene) -> None:
    """W3: at once, and so it does not ask for the short answer, which leaves the line's life as it was."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 3.0)
    for at, ttl in ((0.1, 30.0), (0.2, 30.0), (0.3, 0.8), (0.4, 30.0)):
        scene.take(waiter, "a", at, 0.0, ttl=ttl)
    scene.until(0.5)
    assert [asked.args["ticket"] for asked in scene.seen("grant", since=0.05)] == [b"0", b"+", b"0", b"+"]


@clause(
    "W6", instead("W6-expected", "expected = self.interval() if busy_ms >= 0 else (0.0 if busy_ms == -2 else None)")
)
def a_lease_that_runs_out_is_noticed_at_once(scene: Scene) -> None:
    """W6: the re-check comes at the predicted end, plus jitter, and not at its usual time."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 9.0)
    scene.world.at(0.05, owner.process.crash)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    scene.until(6.0)
    ends = scene.seen("grant")[0].at + 4.0
    assert visit.began is not None
    assert ends < visit.began < ends + 0.04


@clause("W6", never("W6-link-lost"))
def a_connection_that_breaks_has_all_tokens_rechecked_over_a_new_one(scene: Scene) -> None:
    """W6: at once, and not when the re-check is due: a grant may have been in what was lost."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 9.0)
    for _ in range(3):
        scene.take(waiter, "a", 0.1, 0.1)
    scene.until(1.5)
    [wire] = scene.wires(waiter, subscribed=False)
    wire.closed_by_server()
    scene.until(1.6)
    asked = [(len(request.more), request.socket is wire.socket) for request in scene.seen("recheck", since=1.5)]
    assert asked == [(3, False)]


@clause("W6", instead("W6-patience", "return 1e6"))
def a_recheck_that_is_not_answered_is_asked_again_over_a_new_connection(scene: Scene) -> None:
    """W6: after max(R, 250 ms, 4 round trips)."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 9.0)
    scene.take(waiter, "a", 0.1, 0.1)
    scene.until(1.5)
    [wire] = scene.wires(waiter, subscribed=False)
    wire.black_hole()
    scene.until(1.5 + 1.0 + 1.0 + 0.1)  # the next re-check is due within R, and its answer R later
    assert [request.socket for request in scene.seen("recheck", since=1.5)] != []


@clause("W6", instead("W6-heard", "quiet_since = call.sent_at"))
def a_crowd_is_no_dead_link(scene: Scene) -> None:
    """W6: answers that come one by one are no silence, though the last one takes longer than anybody's patience."""
    scene.pause = 0.02
    program = scene.program()
    visits = [scene.take(program, f"{number}", 0.1, 0.0, ttl=30.0) for number in range(200)]
    scene.until(4.0)
    asked = scene.seen("grant", before=4.0)
    assert len(asked) == len(visits)
    assert len({request.socket for request in asked}) == 1
    scene.until(9.0)
    assert [visit.error for visit in visits if visit.error is not None or visit.began is None] == []
