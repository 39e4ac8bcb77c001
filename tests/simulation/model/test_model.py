"""TLC finds no way to break the protocol's promises, and finds one in each planted defect.

Larger sizes: `python -m tests.simulation.model --large`. The states are all states within the bounds, so a pass is a
proof for those sizes, of the model; that the code follows the model is what the other tests are for.
"""

from collections.abc import Iterable

import pytest

from tests.simulation.model.bounds import DEFECTS, LARGE, RIGHT
from tests.simulation.model.checker import HERE, MODULES, check, java, marks
from tests.support.cases import marked

SHORT = "subscriptions"
"""Of the sizes, the one that is also checked by day."""

BY_DAY = "releaser's ttl"
"""The defect that is looked for by day, too. The others are, like the model, of no code: a change of the library can
neither hide nor show them, and Java begins anew for each."""

needs_java = pytest.mark.skipif(
    java() is None, reason="TLC needs Java, and there is no `java`: install default-jre-headless"
)


def at_night(names: Iterable[str]) -> list[object]:
    return [marked(name, pytest.mark.long) for name in sorted(names)]


ACTIONS = {
    "Ask", "AskAgain", "Fault", "LoseStray", "Receive", "Recheck", "Release", "Renew", "Serve", "Subscribe",
    "Subscribed", "Tick", "UndoAgain", "Withdraw",
}  # fmt: skip

LIMIT = 160
"""Seconds for one run, on a machine that is busy: none takes a fifth of it on an idle one."""


@pytest.fixture(scope="module")
def met() -> set[str]:
    """What the runs of the right protocol have come by, one after the other."""
    return set()


@needs_java
@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 10)
@pytest.mark.parametrize("size", [pytest.param(SHORT, id=f"{SHORT}, by day"), *at_night(RIGHT)])
def test_the_protocol_keeps_its_promises_in_every_state_within_bounds(size: str, met: set[str]) -> None:
    bounds = RIGHT[size]
    outcome = check(bounds, coverage=True, limit=LIMIT)
    print(f"{outcome.distinct} states, depth {outcome.depth}, {outcome.seconds:.0f} s; met {sorted(outcome.met)}")
    assert outcome.violated is None, outcome.text[outcome.text.find("Error:") :]
    assert outcome.distinct >= bounds.least
    met |= outcome.met


@needs_java
@pytest.mark.long
def test_the_bounds_are_large_enough_to_meet_everything(met: set[str], request: pytest.FixtureRequest) -> None:
    """A model in which nothing happens keeps every promise."""
    sizes = [item for item in request.session.items if item.name.startswith("test_the_protocol_keeps")]
    if len(sizes) < len(RIGHT):
        pytest.skip("not all sizes were asked for")
    assert not (marks() | ACTIONS) - met


@needs_java
@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 10)
@pytest.mark.parametrize("name", [BY_DAY, *at_night(DEFECTS.keys() - {BY_DAY})])
def test_each_defect_is_found_by_the_promise_that_it_breaks(name: str) -> None:
    bounds = DEFECTS[name]
    outcome = check(bounds, name, brief=True, limit=LIMIT)
    print(f"{outcome.distinct} states, {outcome.seconds:.0f} s: {' '.join(outcome.steps)}")
    assert (outcome.violated,) == bounds.holds


def test_every_defect_in_the_modules_is_looked_for() -> None:
    text = "".join((HERE / f"{module}.tla").read_text() for module in MODULES)
    assert all(f'"{name}"' in text for name in DEFECTS)
    assert text.count('Broken("') + text.count("Variant \\in") >= len(DEFECTS)


def test_every_kind_of_mishap_is_allowed_somewhere() -> None:
    text = (HERE / "Mutex.tla").read_text()
    for sizes in (RIGHT, LARGE):
        kinds = {kind for bounds in sizes.values() for kind in bounds.may}
        assert all(f'"{kind}" \\in May' in text for kind in kinds)
        assert text.count("\\in May") == len(kinds)
