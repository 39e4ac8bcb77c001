"""F20: a few hundred simulated seeds, fresh in each run; ten thousand at night.

AIOLOCKS_SEEDS sets how many, and AIOLOCKS_SEED the first. The seeds of `corpus.txt`, which once failed, go first.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.coverage import missing, table
from tests.simulation.run import run
from tests.simulation.runner import command, run_seeds
from tests.simulation.versions import VERSIONED
from tests.simulation.workload import MARKED
from tests.support.cases import the_rest_slow
from tests.support.seeds import seed_of_run

SEEDS = int(os.environ.get("AIOLOCKS_SEEDS", "300"))
CORPUS = Path(__file__).with_name("corpus.txt")

LONGEST = 40.0
"""Seconds. A machine that is slow at the moment runs fewer seeds, but never fewer than coverage needs."""


def once_failed(*, cluster: bool) -> list[int]:
    lines = [line.split() for line in CORPUS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [int(words[0]) for words in lines if ("cluster" in words[1:2]) == cluster]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("region", [0, MARKED, VERSIONED], ids=["first", "marked", "versions"])
def test_no_schedule_breaks_a_promise_and_all_faults_hit(region: int, cluster: bool) -> None:
    first = region + seed_of_run()
    seeds = [*([] if region else once_failed(cluster=cluster)), *range(first, first + SEEDS // (5 if region else 1))]
    total = run_seeds(seeds, cluster=cluster, until_failed=3, longest=LONGEST)
    print(table(total.met))
    found = [f"{command(outcome.seed, cluster=cluster)}\n  {outcome.violations}" for outcome in total.failed]
    assert not found, "\n".join(found)
    if region:
        assert min(total.met[met] for met in ("marks R", "marks C", "marks O", "starts under a rate")) > 0, total.met
    else:
        assert not missing(total.met, cluster=cluster), f"never met in {total.runs} seeds"


@pytest.mark.rest
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("seeds", the_rest_slow([range(2), range(2, 20)], quick=1))
def test_one_seed_has_one_trace(seeds: range, cluster: bool) -> None:
    traces = [run(seed, tracing=True, cluster=cluster).trace for seed in seeds]
    assert sum(map(len, traces)) > 200 * len(seeds)
    assert [run(seed, tracing=True, cluster=cluster).trace for seed in seeds] == traces


def test_tracing_changes_nothing() -> None:
    plain, traced = run(11), run(11, tracing=True)
    assert (plain.met, plain.seconds) == (traced.met, traced.seconds)


@pytest.mark.slow
def test_another_process_replays_a_seed_exactly() -> None:
    """Addresses and hashes of strings differ there."""

    def replay(hash_seed: str, seed: int, *more: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--trace", *more],
            cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True,
            check=True,
        ).stdout  # fmt: skip

    for seed in (3, 12):
        assert replay("1", seed) == replay("2", seed)
        assert replay("1", seed, "--cluster") == replay("2", seed, "--cluster")
