"""C5: what is wrong on purpose must be caught on real servers too, each by a test for the fault that it bites at."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.redis, pytest.mark.faults]

_CUT_OFF = (
    "tests/faults/test_cut_off.py::test_a_body_cut_off_from_redis_ends_before_anybody_else_can_have_the_name[Lock]"
)
_TOLD_LATE = (
    "tests/faults/test_cut_off.py::"
    "test_a_body_whose_grant_was_told_late_ends_before_anybody_else_can_have_the_name[Lock-asked for]"
)
_RENEWED_LATE = (
    "tests/faults/test_stalls.py::test_a_body_ends_before_its_ttl_when_answers_to_its_renewals_are_late[Lock]"
)
_OVERTAKEN = (
    "tests/faults/test_cancelled_acquires.py::test_an_acquire_that_reaches_redis_after_its_undo_is_granted_to_nobody"
)
_RESTARTED = (
    "tests/faults/test_restarts.py::"
    "test_a_holder_learns_of_an_empty_restart_at_its_next_renewal_and_fences_go_on_rising[Lock]"
)
_FLEET = "tests/primitives/test_conformance.py::test_no_more_tasks_are_inside_at_once_than_there_are_places"

CAUGHT_BY = {
    "no-local-expiry": _CUT_OFF,
    "validity-from-the-reply": _TOLD_LATE,
    "renewal-from-the-reply": _RENEWED_LATE,
    "no-tombstone": _OVERTAKEN,
    "fence-by-incr": _RESTARTED,
    "renewal-recreates": _RESTARTED,
    "limit-forgotten": _FLEET,
    "versioned-write-without-compare": "tests/primitives/test_versioned.py::test_of_updates_at_once_none_is_lost",
    "versioned-write-without-its-answer": (
        "tests/faults/test_versioned_lost_reply.py::test_a_write_whose_answer_is_lost_is_no_conflict"
    ),
    "guard-without-compare": (
        "tests/primitives/test_guard.py::test_a_former_holder_writes_nothing_though_it_believes_in_its_lease"
    ),
    "number-not-made-anew": "tests/scripts/test_number.py::test_what_an_older_version_granted_counts[server]",
    "holder-without-field-counts-as-one": (
        "tests/scripts/test_number.py::test_a_holder_of_which_nothing_is_known_counts_as_the_largest_weight[server]"
    ),
    "handed-over-in-part-and-no-more": (
        "tests/primitives/test_many_at_once.py::test_all_readers_come_in_when_a_writer_leaves[redis]"
    ),
    "granted-past-a-queue-that-is-left": (
        "tests/scripts/test_parts.py::test_no_verb_grants_past_a_queue_that_it_has_no_time_for[server-False-lock]"
    ),
    "fencing-token-accepted-twice": ("tests/scripts/test_redlock.py::test_the_same_token_is_refused_to_somebody_else"),
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("defect", CAUGHT_BY)
def test_a_planted_defect_fails_the_test_for_the_fault_that_it_bites_at(defect: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.support.planted",
            "-p",
            "no:cacheprovider",
            CAUGHT_BY[defect],
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "AIOLOCKS_DEFECT": defect},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    print(done.stdout[-2000:])
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert " failed" in f" {done.stdout.splitlines()[-1]}", "it failed, and did not merely break"
