"""The benchmarks still run: the least of every scenario, so that nobody finds them broken when figures are wanted.

No figure is asserted. How fast something is depends on the machine; that it is measured does not.
"""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench import peers
from tests.bench.figures import Run
from tests.bench.running import run_all
from tests.bench.scale import TINY
from tests.bench.scenarios import SCENARIOS
from tests.support.servers import ServerError, find_binary

REPOSITORY = Path(__file__).parent.parent


def has_server() -> bool:
    try:
        find_binary()
    except ServerError:
        return False
    return True


pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(not has_server(), reason="no redis-server"),
]


_MEASURED = [name for name in SCENARIOS if name != "faults"]
"""What gives figures; the other one gives verdicts."""


@pytest.mark.slow
def test_every_scenario_runs_and_prints_whole_tables(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *_MEASURED, "--tiny", "--only", "aiolocks", "--json", str(figures)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for name in _MEASURED:
        assert f"## {SCENARIOS[name].title}" in lines
    for above, line in pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert len(above) == len(line), "a table whose columns do not line up"
            assert above.count(" | ") == line.count(" | ")
    runs = json.loads(figures.read_text(encoding="utf-8"))["runs"]
    assert list(runs) == _MEASURED
    for rows in runs.values():
        assert rows
        for row, measured in rows.items():
            assert all(run["figures"] and not run["remarks"] for run in measured), row


@pytest.mark.slow
@pytest.mark.faults
def test_aiolocks_passes_when_things_go_wrong_and_the_table_shows_who_does_not() -> None:
    scenario = SCENARIOS["faults"]
    results = run_all(scenario, TINY, ["aiolocks", "redis-py"], lambda _: None)
    [table] = scenario.report(results, TINY).tables
    passed = {row: run.figures.get("passed") for row, [run] in results.items()}
    assert [row for row in passed if row.startswith("aiolocks") and passed[row] != 1] == [], table
    assert len(passed) == 2 * 6
    assert None not in passed.values(), table
    assert passed["redis-py: cancelled-acquire"] == 0, "what leaves ten locks behind must not pass"
    assert table.count("FAILS") == sum(verdict == 0 for verdict in passed.values())


def test_a_measurement_runs_in_a_process_of_its_own() -> None:
    results = run_all(SCENARIOS["one-task"], replace(TINY, fresh=True), ["aiolocks"], lambda _: None)
    assert len(results) == 2
    assert all(runs[0].figures["pairs_per_s"] > 0 for runs in results.values())


def test_a_library_that_is_not_installed_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = peers.Peer("absent", "absent", "no_such_package", "none")
    monkeypatch.setitem(peers.PEERS, "absent", absent)
    results = run_all(SCENARIOS["one-task"], TINY, ["absent"], lambda _: None)
    assert results == {"absent": [Run(remarks=("not installed: pip install -e '.[bench]'",))]}
    assert "not installed" in SCENARIOS["one-task"].report(results, TINY).tables[0]
