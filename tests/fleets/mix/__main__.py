"""Run the mix from the command line.

    python -m tests.fleets.mix --seed 7 --seconds 60      one run: the faults and the work that this seed draws
    python -m tests.fleets.mix --seeds 5 --seconds 120    five runs, with seeds of the day, which are printed
    python -m tests.fleets.mix --seed 7 --on cluster      the same on a Cluster; or on what Sentinels watch
    python -m tests.fleets.mix --seed 7 --plan            what would befall it

The exit status is 0 if nothing was violated, and the faults did bite.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path

from .plan import ALL, On, draw
from .run import run
from .verdict import Verdict


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fleets.mix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, action="append", default=[], help="run this one; may be given again")
    parser.add_argument("--seeds", type=int, default=0, help="run so many more, drawn now")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long faults strike in each run")
    parser.add_argument("--on", choices=ALL, default="server", help="one server, one that Sentinels watch, a Cluster")
    parser.add_argument("--plan", action="store_true", help="only print what would strike when")
    parser.add_argument("--spare", type=int, default=0, help="never kill so many of the workers, to see what grows")
    parser.add_argument("--defect", help="plant this defect of tests.simulation.defects into the workers")
    parser.add_argument("--keep", type=Path, help="leave histories and messages in this directory")
    options = parser.parse_args()
    if options.defect:
        os.environ["AIOLOCKS_DEFECT"] = options.defect
    seeds = options.seed + [random.SystemRandom().randrange(2**32) for _ in range(options.seeds)]
    if options.plan:
        for seed in seeds:
            print(f"seed {seed}:\n{draw(seed, options.seconds, options.on, options.spare)}")
        return 0
    verdicts = [one(seed, options.seconds, options.keep, options.on, options.spare) for seed in seeds or [0]]
    late = sum(verdict.late for verdict in verdicts)
    if not late:
        print("no fault did bite: no write came late")
    return int(not late or any(verdict.violations for verdict in verdicts))


def one(seed: int, seconds: float, keep: Path | None = None, on: On = "server", spare: int = 0) -> Verdict:
    """Run one seed, and say what came of it."""
    print(f"python -m tests.fleets.mix --seed {seed} --seconds {seconds:g} --on {on}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aiolocks-mix-") as temporary:
        directory = Path(temporary) if keep is None else keep / str(seed)
        directory.mkdir(parents=True, exist_ok=True)
        verdict = asyncio.run(run(draw(seed, seconds, on, spare), directory))
    print("  " + ", ".join(f"{count} × {kind}" for kind, count in sorted(verdict.faults.items())))
    print(
        f"  {verdict.grants} grants, {verdict.lost} leases lost; {verdict.accepted} writes accepted, {verdict.late} "
        f"late ones taken by the unchecked counters; a fresh client had every name within {verdict.slowest:.2f} s; "
        f"{len(verdict.violations)} violations of C1-C4",
        *verdict.violations[:20],
        sep="\n  ",
        flush=True,
    )
    return verdict


if __name__ == "__main__":
    sys.exit(main())
