"""The benchmarks run: the least of every scenario. No figure is asserted, as that depends on the machine."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench import against, event_loops, peers
from bench.command import main
from bench.figures import Run
from bench.processes import PACKAGE_VARIABLE, environment
from bench.running import run_all
from bench.scale import TINY
from bench.scenarios import SCENARIOS
from tests.support.lateness import TooLateError

REPOSITORY = Path(__file__).parents[3]
pytestmark = [pytest.mark.redis, pytest.mark.rest]

_MEASURED = [name for name in SCENARIOS if name != "faults"]
"""What gives figures; the other one gives verdicts."""


@pytest.mark.slow
@pytest.mark.parametrize("named", [_MEASURED[:6], _MEASURED[6:12], _MEASURED[12:]])
def test_every_scenario_runs_and_prints_whole_tables(tmp_path: Path, named: list[str]) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, ".bench", *named, "--tiny", "--only", "aiolocks", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for name in named:
        assert f"## {SCENARIOS[name].title}" in lines
    for above, line in pairwise(lines):
        if above.startswith("|") and line.startswith("|"):
            assert len(above) == len(line), "a table whose columns do not line up"
            assert above.count(" | ") == line.count(" | ")
    runs = json.loads(figures.read_text(encoding="utf-8"))["runs"]
    assert list(runs) == named
    for rows in runs.values():
        assert rows
        for row, measured in rows.items():
            if any("there was no grant while it was measured" in run["remarks"] for run in measured):
                raise TooLateError(row)
            assert all(run["figures"] and not run["remarks"] for run in measured), row


@pytest.mark.slow
@pytest.mark.faults
def test_aiolocks_passes_when_things_go_wrong_and_the_table_shows_other_libraries_that_fail() -> None:
    scenario = SCENARIOS["faults"]
    results = run_all(scenario, TINY, ["aiolocks", "redis-py"], lambda _: None)
    [table] = scenario.report(results, TINY).tables
    for row, [run] in results.items():
        late = row.startswith("aiolocks") and not run.figures.get("passed") and "stayed taken" in "".join(run.remarks)
        if late and run.figures["seconds"] < TINY.fault_ttl / 2 + 0.1:  # a leaked lock stays for longer
            raise TooLateError(table)
    passed = {row: run.figures.get("passed") for row, [run] in results.items()}
    assert [row for row in passed if row.startswith("aiolocks") and passed[row] != 1] == [], table
    assert len(passed) == 2 * 6
    assert None not in passed.values(), table
    assert passed["redis-py: cancelled-acquire"] == 0, "what leaves ten locks behind must not pass"
    assert table.count("FAILS") == sum(verdict == 0 for verdict in passed.values())


@pytest.mark.parametrize("loop", event_loops.LOOPS)
@pytest.mark.parametrize("fresh", [True, False])
def test_a_benchmark_runs_on_the_loop_that_its_option_names(loop: str, fresh: bool) -> None:
    scenario = SCENARIOS["one-lock"]
    long_enough = replace(TINY, loop=loop, fresh=fresh, seconds=1.0)  # for a process that is late
    [runs] = run_all(scenario, long_enough, ["aiolocks"], lambda _: None).values()
    assert runs[0].figures["handoffs_per_s"] > 0, runs

    async def measure(*_: object) -> Run:
        return Run(remarks=(event_loops.running(),))

    scenario = replace(scenario, measure=measure)
    [runs] = run_all(scenario, replace(TINY, loop=loop), ["aiolocks"], lambda _: None).values()
    assert runs == [Run(remarks=(loop,))]


def test_a_library_that_is_not_installed_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = peers.Peer("absent", "absent", "no_such_package", "none")
    monkeypatch.setitem(peers.PEERS, "absent", absent)
    results = run_all(SCENARIOS["one-task"], TINY, ["absent"], lambda _: None)
    assert results == {"absent": [Run(remarks=("not installed: pip install -e . --group bench",))]}
    assert "not installed" in SCENARIOS["one-task"].report(results, TINY).tables[0]


_LATE = """
from aiolocks._primitives.semaphore import Semaphore as _Semaphore

async def _late(self, *arguments, _acquire=_Semaphore.acquire, **options):
    import asyncio
    await asyncio.sleep(0.05)
    return await _acquire(self, *arguments, **options)

_Semaphore.acquire = _late
"""


@pytest.mark.slow
def test_another_checkout_s_version_is_measured_in_turns_and_a_slower_one_is_told_apart(tmp_path: Path) -> None:
    checkout, figures = tmp_path / "other", tmp_path / "figures.json"
    shutil.copytree(REPOSITORY / "aiolocks", checkout / "aiolocks", ignore=shutil.ignore_patterns("__pycache__"))
    with (checkout / "aiolocks" / "__init__.py").open("a", encoding="utf-8") as package:
        package.write(_LATE)
    command = [".bench", "semaphore", "--tiny", "--seconds", "0.5", "--runs", "2"]  # some slices long, for each
    command += ["--against", str(checkout), "--json", str(figures)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=REPOSITORY, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    rows_begun = sorted(line for line in done.stderr.splitlines() if ": aiolocks" in line)  # of a turn, all at once
    assert rows_begun == [f"semaphore {turn}/2: aiolocks{how}" for turn in (1, 2) for how in ("", " async with")]
    text = figures.read_text(encoding="utf-8")
    if "there was no grant while it was measured" in text:
        raise TooLateError("no grant")
    turns = json.loads(text)["turns"]["semaphore"]
    by_hand = {name: [run["figures"]["wait_p50_ms"] for run in runs] for name, runs in turns["aiolocks"].items()}
    assert min(by_hand["other"]) >= 50, "the other checkout's code was not the one measured"
    assert f"| {'aiolocks':19} |       handoffs_per_s |" in done.stdout
    assert "no slower |" in done.stdout
    assert f" {checkout} |" in done.stdout


def test_a_process_refuses_to_measure_another_version_than_it_was_told_to(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import bench.peers.own"]
    env = {**environment(), PACKAGE_VARIABLE: str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=env, timeout=30)
    assert done.returncode == 1
    assert f"RuntimeError: aiolocks was imported from {REPOSITORY / 'aiolocks'}, not from {tmp_path}" in done.stderr


@pytest.mark.parametrize(("this", "other", "figure", "verdict"), [
    ([97, 1, 500], [100, 100, 100], "pairs_per_s", None), ([96.9, 1, 500], [100, 100, 100], "handoffs_per_s", "0.969"),
    ([100], [97], "release_us", None), ([104], [100], "release_us", "0.962"), ([1], [100], "wait_p99_ms", None),
])  # fmt: skip
def test_slower_is_what_has_under_97_percent_of_the_other_s_speed(
    this: list[float], other: list[float], figure: str, verdict: str | None
) -> None:
    turns = {"row": {"this": [Run({figure: one}) for one in this], "other": [Run({figure: one}) for one in other]}}
    assert against.slower(turns) == ([] if verdict is None else [f"row: {figure} {verdict}"])
    assert ("SLOWER" in against.table(turns)) == (verdict is not None)


def test_what_cannot_be_measured_or_compared_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(event_loops, "find_spec", lambda _: None)
    with_itself = ["--against", str(REPOSITORY)]
    for options, says in (
        (["--loop", "uvloop"], "uvloop is not installed: pip install uvloop"),
        ([*with_itself, "--only", "redis-py"], ""),
        ([*with_itself, "--profile"], ""),
        (["--against", str(tmp_path)], ""),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["one-task", "--tiny", *options])
        assert ended.value.code == 2, options
        assert says in capsys.readouterr().err
