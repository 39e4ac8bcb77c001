"""Runs a scenario: each measurement in a fresh process against a fresh server, interleaved over the cases.

Interleaved, so that a busy minute of the machine falls on all libraries alike.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from bench import event_loops
from bench.calm import calmest
from bench.figures import Case, Run
from bench.measuring import measure
from bench.peers import PEERS
from bench.processes import REPOSITORY, end_group, environment
from bench.scale import Scale
from bench.scenario import Scenario
from tests.support.servers import RedisServer

_PATIENCE = 240.0
"""Timeout for a measurement; the longest one takes two minutes."""

Beside = Callable[[int], AbstractContextManager[None]]

_MISSING = "not installed: pip install -e . --group bench"


def run_all(
    scenario: Scenario, scale: Scale, libraries: Sequence[str], progress: Callable[[str], None]
) -> dict[str, list[Run]]:
    """Return all runs of one scenario, by row in the order of its table."""
    cases = scenario.cases(scale, libraries)
    results: dict[str, list[Run]] = {case.row: [] for case in cases}
    possible: list[Case] = []
    for case in cases:
        missing = "" if PEERS[case.library].installed else _MISSING
        if case.cannot or missing:
            results[case.row].append(Run(remarks=(case.cannot or missing,)))
        else:
            possible.append(case)

    def run(number: int, case: Case) -> Run:
        progress(f"{scenario.name} {number + 1}/{scale.runs}: {case.row}")
        return calmest(lambda: measured(scenario, case, scale), scale.attempts)

    with ThreadPoolExecutor(scale.at_once) as threads:
        # Alone it stays in this thread, so that an interruption ends what is being measured.
        each = map if scale.at_once == 1 else threads.map
        for number in range(scale.runs):
            start = number % max(len(possible), 1)  # no case is always first, or always after the same one
            ordered = possible[start:] + possible[:start]
            for case, found in zip(ordered, each(partial(run, number), ordered), strict=True):
                results[case.row].append(found)
    return results


def measured(
    scenario: Scenario,
    case: Case,
    scale: Scale,
    variables: Mapping[str, str] | None = None,
    beside: Beside | None = None,
) -> Run:
    """Measure a case once, against a fresh server.

    Args:
        scenario: The scenario of the case.
        case: What is measured.
        scale: Says whether to use a process of its own, and which event loop.
        variables: Additional environment of that process.
        beside: Entered with the id of the process while it runs, as the leader of a group that takes turns with others.
    """
    with RedisServer(options=scenario.server_options) as server:
        job = {
            "scenario": scenario.name,
            "library": case.library,
            "parameters": dict(case.parameters),
            "loop": scale.loop,
            "url": server.tcp_url,
            "admin_url": server.url,
        }
        if scale.fresh:
            return _in_fresh_process(job, variables or {}, beside)
        return event_loops.run(scale.loop, measure(scenario, job))


def _in_fresh_process(job: dict[str, Any], variables: Mapping[str, str], beside: Beside | None) -> Run:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.measuring"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**environment(), **variables},
        start_new_session=True,
    )
    try:
        with beside(process.pid) if beside else nullcontext():
            output, errors = process.communicate(json.dumps(job) + "\n", timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return Run(remarks=(f"gave up after {_PATIENCE:g} s",))
    finally:
        end_group(process)
    if process.returncode != 0 or not output.strip():
        last = errors.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        return Run(remarks=(f"failed: {last[0]}",))
    measured = json.loads(output.splitlines()[-1])
    return Run(measured["figures"], tuple(measured["remarks"]), measured["counted"])
