"""What the benchmarks say about order and exclusion, on histories that are written down here."""

import pytest

from bench.turns import NEVER, Acquisition, overlaps, overtaking, overtaking_within, percentile, repeated

pytestmark = pytest.mark.rest

MS = 1_000_000


def turn(
    asked_ms: int, granted_ms: int | None, released_ms: int = 0, *, process: int = 0, order: int = 0
) -> Acquisition:
    granted = NEVER if granted_ms is None else granted_ms * MS
    return Acquisition(process, order, order, asked_ms * MS, granted, released_ms * MS if released_ms else NEVER)


@pytest.mark.smoke
def test_holds_overlap_beyond_the_limit_of_which_a_writer_takes_all() -> None:
    assert overlaps([turn(0, 1, 4), turn(0, 3, 5)]) == 1
    assert overlaps([turn(0, 1, 3), turn(0, 3, 5)]) == 0
    readers, writer = [turn(0, 1, 9), turn(0, 2, 9), turn(0, 3, 9)], turn(0, 4, 9, order=7)
    assert (overlaps(readers, limit=3), overlaps(readers, limit=2)) == (0, 1)

    def weight(one: Acquisition) -> int:
        return 3 if one.task == 7 else 1

    assert overlaps(readers, 3, weight) == 0
    assert overlaps([*readers[:2], writer], 3, weight) == 1
    assert overlaps([writer, turn(0, 5, 6)], 3, weight) == 1


def test_a_request_has_overtaken_one_that_is_older_by_more_than_five_milliseconds_or_never_served() -> None:
    assert overtaking([turn(0, 20), turn(10, 15)]) == {turn(10, 15)}
    assert overtaking([turn(0, 20), turn(5, 15)]) == set()
    assert overtaking([turn(0, None), turn(10, 15)]) == {turn(10, 15)}


def test_within_a_process_any_overtaking_counts_by_fencing_tokens_where_news_of_grants_crossed() -> None:
    assert overtaking_within([turn(0, 20, order=0), turn(0, 15, order=1)]) == 1
    assert overtaking_within([turn(0, 20, process=1), turn(0, 15, process=2, order=1)]) == 0
    first = Acquisition(0, 0, 0, asked=1, granted=9, released=10, fence=100)
    second = Acquisition(0, 1, 1, asked=2, granted=8, released=10, fence=101)
    assert overtaking_within([first, second]) == 1
    assert overtaking_within([first, second], by_fence=True) == 0


def test_the_same_task_twice_in_a_row_is_told_and_a_percentile_is_one_of_the_values() -> None:
    assert repeated([turn(0, 1, order=1), turn(2, 3, order=1), turn(0, 5, order=2)]) == (1, 3)
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)
