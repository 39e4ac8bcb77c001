"""F19: workers, servers and connections broken at random, by a seed; for minutes in `python -m tests.nightly mix`."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from aiolocks.testing import HistoryEvent
from tests.fleets.mix.__main__ import one
from tests.fleets.mix.faults import Loss
from tests.fleets.mix.plan import ALL, KINDS, TTL, On, draw
from tests.fleets.mix.run import run
from tests.fleets.mix.verdict import as_promised, trends
from tests.support.lateness import SLACK
from tests.support.seeds import seed_of_run

pytestmark = pytest.mark.faults

SECONDS = float(os.environ.get("AIOLOCKS_MIX_SECONDS", "20"))
FIXED = 3
"""A seed whose faults surely bite."""


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "random"])
def test_no_mix_of_faults_breaks_a_promise(fixed: bool) -> None:
    """F19: C1 to C4 for every name, and no token in any message (P14); late writes prove that the faults did bite."""
    verdict = one(FIXED if fixed else seed_of_run(), SECONDS)
    assert verdict.violations == []
    assert verdict.grants > 100
    assert verdict.late > 0 or not fixed


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize("on", ["sentinel", "cluster"])
def test_no_mix_breaks_a_promise_where_primaries_are_replaced(on: On) -> None:
    """F14, F15, F19: an exclusion that a failover without `replicas` may cost is not judged; fencing tokens are."""
    verdict = one(seed_of_run(), SECONDS, on=on)
    assert verdict.violations == []
    assert verdict.grants > 100


@pytest.mark.redis
@pytest.mark.slow
def test_without_faults_no_lease_is_lost_and_no_write_comes_late(tmp_path: Path) -> None:
    """So what comes late in the other runs does because of their faults."""
    plan = replace(draw(0, 3.0), strikes=(), killed_at_the_end=(), ttl=SLACK * TTL)  # a busy machine is no fault
    verdict = asyncio.run(run(plan, tmp_path))
    assert verdict.violations == []
    assert (verdict.lost, verdict.late) == (0, 0)
    assert verdict.grants > 50


def test_a_seed_always_draws_the_same_plan_and_all_kinds_are_drawn() -> None:
    plans = [draw(seed, 60.0, on) for seed in range(40) for on in ALL]
    assert plans == [draw(seed, 60.0, on) for seed in range(40) for on in ALL]
    assert {plan.replicas for plan in plans} == {0, 1}
    assert {strike.kind for plan in plans for strike in plan.strikes} == set(KINDS)
    assert not any(KINDS[strike.kind].loses for plan in plans if not plan.loses for strike in plan.strikes)


def judged(history: list[HistoryEvent], losses: list[Loss], what: str) -> list[tuple[int, str]]:
    history = sorted(history, key=lambda event: event.monotonic_ns)
    return [(seen.monotonic_ns, seen.token) for seen in as_promised(history, losses) if seen.event == what]


def test_leases_that_a_server_forgot_are_told_from_later_ones_by_their_fencing_tokens() -> None:
    acquired = [(10, "old", 100), (50, "new", 200), (60, "known late", 101)]
    history = [HistoryEvent(at, 1, "acquired", token, fence, "lock 0") for at, token, fence in acquired]
    history += [HistoryEvent(at + 60, 1, "released", token, fence, "lock 0") for at, token, fence in acquired]
    losses = [Loss(since_ns=40, fence=150)]
    assert judged(history, losses, "acquired") == [(10, "old"), (50, "new")]
    assert (40, "old") in judged(history, losses, "lost")


def test_a_killed_process_believed_in_its_lease_no_longer_than_it_had_noted() -> None:
    history = [
        HistoryEvent(10, 1, "acquired", "a", 100, "lock 0"),
        HistoryEvent(30, 1, "until", "a", 100, "lock 0"),
        HistoryEvent(20, 2, "acquired", "b", 101, "lock 0"),
        HistoryEvent(45, 2, "until", "b", 101, "lock 0"),
        HistoryEvent(90, 1, "killed"),
    ]
    assert judged(history, [], "lost") == [(30, "a")]


@pytest.mark.parametrize(("grown", "says"), [(0, []), (2, ["tasks grew from 40 to 59.5"])])
def test_what_grows_from_minute_to_minute_is_told_from_noise(tmp_path: Path, grown: int, says: list[str]) -> None:
    path = tmp_path / "samples-1"
    samples = [{"tasks": 10 + grown * minute + minute % 3, "keys": 1000 + minute % 7} for minute in range(30)]
    path.write_text("\n".join(map(json.dumps, samples)))
    assert trends(path) == says
