"""C5: what is planted must be found. Those that take many seeds are looked for at night: `--defects --seeds 2000`."""

from contextlib import ExitStack

import pytest

from tests.simulation.catalogue import catalogue
from tests.simulation.defects import DEFECTS, planted
from tests.simulation.planting import without
from tests.simulation.run import in_parts, run
from tests.simulation.runner import find
from tests.support.cases import marked
from tests.support.garden import Garden, NotThere, markers

SELDOM_MET = {
    "late-grant-not-released", "names-in-any-order", "parts-kept-after-failing", "renewal-from-the-reply",
    "cancelled-call-uses-a-start", "start-has-no-time-to-be-late",
}  # fmt: skip
"""What takes so many seeds that ten seconds of a processor go by. Tests of units find most of it as well."""


def test_each_defect_can_be_planted_and_leaves_nothing_behind() -> None:
    before = run(2).met
    for name in DEFECTS:
        with planted(name):
            pass
    assert run(2).met == before


def test_each_marker_has_a_defect_and_each_defect_a_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    named = set[str]()
    monkeypatch.setattr(Garden, "at", lambda _, marker, change: named.add(marker))
    with ExitStack() as undo:
        for plant in catalogue().values():
            plant(Garden(undo))
        undo.enter_context(in_parts(0))
    assert named == markers().keys()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name", [marked(name, pytest.mark.long) if name in SELDOM_MET else name for name in sorted(DEFECTS)]
)
def test_each_defect_is_found(name: str) -> None:
    found = find(name, range(500))
    assert found.hits, f"not in {found.runs} seeds; {found.others} failed in other ways"


def test_a_defect_whose_marker_has_gone_is_an_error() -> None:
    with pytest.raises(NotThere, match="no-such-marker"), ExitStack() as undo:
        without("no-such-marker")(Garden(undo))
