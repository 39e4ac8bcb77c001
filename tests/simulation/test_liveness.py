"""One process or server fails for good, and the others go on. AIOLOCKS_SEED is the first seed."""

from contextlib import ExitStack

import pytest

from tests.simulation.liveness import FAULTS, FOR_GOOD, explore, run_liveness
from tests.simulation.planting import instead
from tests.simulation.runner import command
from tests.support.garden import Garden
from tests.support.seeds import seed_of_run


@pytest.mark.rest
@pytest.mark.parametrize("seeds", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
def test_each_process_is_served_in_time_while_another_or_a_server_fails_for_good(seeds: int) -> None:
    first = seed_of_run()
    total = explore(range(first, first + seeds))
    found = [f"{command(each.seed, liveness=True)}\n  {each.violations}" for each in total.failed]
    assert not found, "\n".join(found)
    assert seeds < 50 or all(total.met[FOR_GOOD + fault] for fault in FAULTS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_that_is_never_taken_for_dead_is_found() -> None:
    """W3: each of its waiters would cost one lease. Runs in which all faults end do not show it."""
    with ExitStack() as undo:
        instead("W3-life", "return b'%b %d %b' % (name, round(12_000 * interval), channels)")(Garden(undo))
        total = explore(range(20))
    assert total.failed
    assert all("P13" in text for outcome in total.failed for text in outcome.violations)


def test_one_seed_has_one_trace() -> None:
    trace = run_liveness(3, tracing=True).trace
    assert len(trace) > 50
    assert run_liveness(3, tracing=True).trace == trace
