"""What the bench makes of a host that takes its processors away: by figures alone, none of them a library's."""

from collections.abc import Iterable

import pytest

from tests.bench.calm import CALM, FIGURE, calmest, processor_times, remark
from tests.bench.figures import Run

LEFT_ALONE, DISTURBED, WORSE = 0.0, 10.0, 20.0


class Host:
    """Takes these percents from one measurement after the other."""

    def __init__(self, taken: Iterable[float]) -> None:
        self.taken = iter(taken)
        self.times = [0] * 8
        self.measured = 0

    def measure(self) -> Run:
        self.measured += 1
        percent = round(next(self.taken))
        self.times = [ticks + more for ticks, more in zip(self.times, [100 - percent, *[0] * 6, percent], strict=True)]
        return Run({"speed": float(self.measured)})

    def calmest(self, attempts: int = 3) -> Run:
        return calmest(self.measure, attempts, lambda: self.times)


def test_a_run_that_was_left_alone_is_made_once() -> None:
    host = Host([CALM])
    assert host.calmest() == Run({"speed": 1.0, FIGURE: CALM})


def test_a_disturbed_run_is_made_again() -> None:
    host = Host([DISTURBED, LEFT_ALONE])
    assert host.calmest() == Run({"speed": 2.0, FIGURE: LEFT_ALONE})


def test_of_disturbed_runs_the_one_that_lost_least_counts_however_fast_it_was() -> None:
    host = Host([WORSE, DISTURBED, WORSE])
    assert host.calmest() == Run({"speed": 2.0, FIGURE: DISTURBED})


def test_what_failed_is_not_made_again() -> None:
    failed = Run(remarks=("failed",))
    assert calmest(lambda: failed, 3, lambda: [0] * 8) is failed


def test_a_system_that_does_not_tell_is_taken_at_its_word() -> None:
    assert calmest(lambda: Run({"speed": 1.0}), 3, list) == Run({"speed": 1.0})


def test_what_the_host_took_is_said_below_the_table() -> None:
    runs = {"one": [Run({FIGURE: 0.5}), Run({FIGURE: 1.5})], "other": [Run({FIGURE: 0.0})]}
    assert remark(runs, attempts=3).startswith("The host took 0.5 % of the processors' time from these runs (0.0–1.5).")
    assert remark({"one": [Run({"speed": 1.0})]}, attempts=3) == ""


@pytest.mark.skipif(not processor_times(), reason="the system does not tell")
def test_linux_tells_the_time_of_each_kind() -> None:
    assert len(processor_times()) == 8
