"""One measurement in a process of its own: `python -m bench.measuring` reads a job from its standard input.

What it measured goes to standard output as one line of JSON, the last one.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

from bench import event_loops
from bench.figures import Run
from bench.scenario import Scenario, Server
from bench.scenarios import SCENARIOS
from bench.scenarios.profile import PROFILE


async def measure(scenario: Scenario, job: dict[str, Any]) -> Run:
    """Return the run of *job*; an error becomes a remark."""
    server = Server(job["url"], job["admin_url"])
    try:
        return await scenario.measure(job["library"], job["parameters"], server)
    except Exception as error:
        return Run(remarks=(f"failed: {type(error).__name__}: {error}",))


def main() -> None:
    job = json.loads(sys.stdin.readline())
    run = event_loops.run(job["loop"], measure({**SCENARIOS, PROFILE.name: PROFILE}[job["scenario"]], job))
    print(json.dumps(asdict(run)), flush=True)


if __name__ == "__main__":
    main()
