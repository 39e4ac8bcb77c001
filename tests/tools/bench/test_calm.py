"""What the bench makes of a host that takes its processors away: by figures alone, none of them a library's."""

from collections.abc import Iterable

import pytest

from bench.calm import CALM, FIGURE, calmest, processor_times, remark
from bench.figures import Run

pytestmark = pytest.mark.rest

LEFT_ALONE, DISTURBED, WORSE = 0.0, 10.0, 20.0
FAILED = Run(remarks=("failed",))


class Host:
    """Takes these percents from one measurement after the other; the processors are idle for half of the time."""

    def __init__(self, taken: Iterable[float], failing: int = 0) -> None:
        self.taken = iter(taken)
        self.times = {"user": 0, "idle": 0, "steal": 0}
        self.measured = 0
        self.failing = failing
        """Which measurement fails."""

    def measure(self) -> Run:
        self.measured += 1
        percent = round(next(self.taken))
        spent = {"user": 100 - percent, "idle": 100, "steal": percent}
        self.times = {kind: ticks + spent[kind] for kind, ticks in self.times.items()}
        return FAILED if self.measured == self.failing else Run({"speed": float(self.measured)})


@pytest.mark.parametrize(("taken", "failing", "counts"), [
    ([CALM], 0, Run({"speed": 1.0, FIGURE: CALM})),
    ([DISTURBED, LEFT_ALONE], 0, Run({"speed": 2.0, FIGURE: LEFT_ALONE})),
    ([WORSE, DISTURBED, WORSE], 0, Run({"speed": 2.0, FIGURE: DISTURBED})), ([LEFT_ALONE], 1, FAILED),
    ([DISTURBED, LEFT_ALONE], 1, Run({"speed": 2.0, FIGURE: LEFT_ALONE})),
    ([DISTURBED, WORSE, WORSE], 2, Run({"speed": 1.0, FIGURE: DISTURBED})), ([WORSE, DISTURBED, WORSE], 2, FAILED),
])  # fmt: skip
def test_a_disturbed_run_is_repeated_and_the_calmest_counts(taken: list[float], failing: int, counts: Run) -> None:
    host = Host(taken, failing)
    assert calmest(host.measure, 3, lambda: host.times) == counts
    assert host.measured == len(taken)
    assert calmest(lambda: Run({"speed": 1.0}), 3, dict) == Run({"speed": 1.0}), "a system that does not tell"


def test_what_the_host_took_is_said_below_the_table() -> None:
    runs = {"one": [Run({FIGURE: 0.5}), Run({FIGURE: 1.5})], "other": [Run({FIGURE: 0.0})]}
    assert remark(runs, attempts=1).endswith(
        "took 0.5 % of the time in which processors had something to do (0.0–1.5)."
    )
    assert "was repeated, up to 2 times" in remark(runs, attempts=3)
    assert remark({"one": [Run({"speed": 1.0})]}, attempts=3) == ""


@pytest.mark.skipif(not processor_times(), reason="the system does not tell")
def test_linux_tells_the_time_of_each_kind() -> None:
    times = processor_times()
    assert len(times) == 8
    assert times["user"] > 0
