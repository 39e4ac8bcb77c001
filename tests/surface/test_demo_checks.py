"""The checkers of `aiolocks demo`: each accepts what should be, and notices what it is there for."""

from collections.abc import Callable
from functools import partial

from aiolocks.cli._demo import _checks as checks
from aiolocks.cli._demo._events import Event
from tests.support.cases import one_by_one

QUEUE = (
    "0 ada asked, 1 ada held 1, 10 ben asked, 12 ben queued, 20 cleo asked, 22 cleo queued, 100 ada left, "
    "101 ben held 2, 150 ben left, 151 cleo held 3, 200 cleo left"
)
PERMITS = (
    "0 ada asked, 0 ben asked, 1 ada held 1, 2 ben held 2, 3 cleo asked, 50 ada left, 51 cleo held 3, 60 ben left, "
    "90 cleo left"
)
LONG_JOB = "0 ben asked, 1 ben held 1, 300 ben renewed, 500 cleo asked, 3400 ben left, 3401 cleo held 2, 3800 cleo left"
DEATH = "0 gus asked, 1 gus held 1, 2 dan asked, 400 gus died, 1100 dan held 2, 1200 dan left"
TAKEN = (
    "0 eve asked, 1 eve held 1, 400 demo deleted, 700 eve stopped 1, 701 eve lost 1, 702 finn asked, 703 finn held 2, "
    "800 finn left"
)

Check = Callable[[list[Event]], checks.Verdict]

in_order, exclusive, unsurprising = checks.check_order, checks.check_exclusion, checks.check_surprises
two_at_once: Check = partial(checks.check_depth, limit=2)
kept: Check = partial(checks.check_kept, ttl=1.0)
returned: Check = partial(checks.check_return, ttl=1.0)
stopped: Check = partial(checks.check_loss, ttl=1.0)
fenced: Check = partial(checks.check_fences, limits={})
fenced_permits: Check = partial(checks.check_fences, limits={"name": 2})


def recorded(lines: str) -> list[Event]:
    """Return records from *lines*, each `milliseconds worker event [fence or stalled seconds]`, in order of time."""
    events = []
    for line in filter(None, lines.split(", ")):
        at, worker, event, *rest = line.split()
        number = float(rest[0]) if rest else 0
        seconds, fence = (number, 0) if event == "stalled" else (0.0, int(number))
        events.append(Event(int(at) * 10**6, worker, 1, event, "name", fence=fence, seconds=seconds))
    return sorted(events, key=lambda event: event.at)


@one_by_one("check, lines, line, doctored", [
    (in_order, QUEUE, "101 ben held 2", "152 ben held 2"), (in_order, QUEUE, "12 ben queued", "21 ben queued"),
    (in_order, QUEUE, "12 ben queued", ""), (in_order, QUEUE, "151 cleo held 3", ""),
    (exclusive, QUEUE, "101 ben held 2", "99 ben held 2"), (exclusive, QUEUE, "100 ada left", ""),
    (two_at_once, PERMITS, "51 cleo held 3", "49 cleo held 3"),
    (two_at_once, PERMITS, "60 ben left", "60 ben left, 89 dan asked, 89 dan held, 89 eve asked, 89 eve held"),
    (two_at_once, PERMITS, "51 cleo held 3", ""), (two_at_once, PERMITS, "2 ben held 2", "91 ben held 2"),
    (kept, LONG_JOB, "3400 ben left", "2900 ben left"), (kept, LONG_JOB, "3400 ben left", "3400 ben lost"),
    (kept, LONG_JOB, "3401 cleo held 2", "3399 cleo held 2"), (kept, LONG_JOB, "500 cleo asked", "3401 cleo asked"),
    (kept, LONG_JOB, "3401 cleo held 2", ""), (returned, DEATH, "1100 dan held 2", "1601 dan held 2"),
    (returned, DEATH, "1100 dan held 2", "399 dan held 2"), (returned, DEATH, "1100 dan held 2", ""),
    (returned, DEATH, "400 gus died", "399 gus left, 400 gus died"), (returned, DEATH, "400 gus died", ""),
    (returned, DEATH, "2 dan asked", "401 dan asked"),
    (stopped, TAKEN, "700 eve stopped 1, 701 eve lost 1", "1601 eve stopped 1, 1602 eve lost 1"),
    (stopped, TAKEN, "700 eve stopped 1", "399 eve stopped 1"), (stopped, TAKEN, "700 eve stopped 1", "700 eve left 1"),
    (stopped, TAKEN, "701 eve lost 1", ""), (stopped, TAKEN, "400 demo deleted", ""),
    (fenced, QUEUE, "151 cleo held 3", "151 cleo held 2"), (fenced, QUEUE, "151 cleo held 3", "151 cleo held 1"),
    (fenced_permits, PERMITS, "51 cleo held 3", "51 cleo held 1"),
    (fenced_permits, PERMITS, "2 ben held 2", "2 ben held 4"), (unsurprising, TAKEN, "400 demo deleted", ""),
    (unsurprising, TAKEN, "800 finn left", "800 finn failed"),
])  # fmt: skip
def test_checkers_accept_true_records_and_no_doctored_ones(check: Check, lines: str, line: str, doctored: str) -> None:
    assert f", {line}, " in f", {lines}, "
    assert check(recorded(lines)).ok
    assert not check(recorded(lines.replace(line, doctored))).ok


def test_bound_on_time_is_net_of_what_the_machine_did_not_give() -> None:
    late = DEATH.replace("1100 dan held 2, 1200 dan left", "1700 dan held 2, 1800 dan left")
    assert not returned(recorded(late)).ok
    assert returned(recorded(f"{late}, 1650 dan stalled 0.3")).ok
    assert not returned(recorded(f"{late}, 300 dan stalled 0.3")).ok
