"""Run the simulation from the command line.

    python -m tests.simulation --seeds 10000 --jobs 2     the nightly run
    python -m tests.simulation --seeds 4000 --cluster     the same on the nodes of a Cluster
    python -m tests.simulation --seeds 1000 --liveness    one process or server fails for good, and all others go on
    python -m tests.simulation --seed 42 --trace          one run, exactly as it was
    python -m tests.simulation --defects                  in how many seeds each planted defect is found

The exit status is 0 if nothing was violated and everything that coverage asks for was met.
"""

import argparse
import sys

from .coverage import missing, table
from .defects import DEFECTS, in_cluster, kinds_for, planted
from .liveness import FOR_GOOD, explore, run_liveness
from .run import run
from .runner import Total, command, find, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened")
    parser.add_argument("--seeds", type=int, default=1000, help="run so many")
    parser.add_argument("--start", type=int, default=0, help="from this one on")
    parser.add_argument("--jobs", type=int, default=1, help="in so many processes")
    parser.add_argument("--cluster", action="store_true", help="on the nodes of a Cluster")
    parser.add_argument("--liveness", action="store_true", help="with a fault that never heals; on one server or three")
    parser.add_argument("--defect", choices=sorted(DEFECTS), help="plant this defect first")
    parser.add_argument("--defects", action="store_true", help="plant each defect, and say when it is found")
    options = parser.parse_args()
    if options.seed is not None:
        live = options.liveness
        return _replay(options.seed, options.defect, tracing=options.trace, cluster=options.cluster, liveness=live)
    if options.liveness:
        return _run_liveness(range(options.start, options.start + options.seeds), options.defect)
    if options.defects:
        return _find_defects(options.start, options.seeds, options.jobs)
    seeds = range(options.start, options.start + options.seeds)
    return _run_many(seeds, options.jobs, options.defect, cluster=options.cluster)


def _replay(seed: int, defect: str | None, *, tracing: bool, cluster: bool, liveness: bool) -> int:
    with planted(defect):
        if liveness:
            outcome = run_liveness(seed, tracing=tracing)
        else:
            outcome = run(seed, tracing=tracing, kinds=kinds_for(defect), cluster=cluster or in_cluster(defect))
    print(*outcome.trace, sep="\n")
    print(f"seed {seed}: {outcome.seconds:.3f} virtual seconds")
    print(*outcome.violations or ["nothing was violated"], sep="\n")
    return bool(outcome.violations)


def _run_liveness(seeds: range, defect: str | None) -> int:
    with planted(defect):
        total = explore(seeds)
    print(*(f"{count:>6}  {what}" for what, count in sorted(total.met.items()) if what.startswith(FOR_GOOD)), sep="\n")
    _tell_of(total, f"{total.runs} seeds", defect, liveness=True)
    return bool(total.failed)


def _tell_of(total: Total, seeds: str, defect: str | None, *, cluster: bool = False, liveness: bool = False) -> None:
    print(f"{seeds}; {len(total.failed)} failed")
    for outcome in total.failed:
        print(f"\nseed {outcome.seed}:", *outcome.violations, sep="\n  ")
        print(f"  replay: {command(outcome.seed, defect, cluster=cluster, liveness=liveness)}")


def _run_many(seeds: range, jobs: int, defect: str | None, *, cluster: bool) -> int:
    total = run_seeds(seeds, jobs=jobs, defect=defect, cluster=cluster)
    print(table(total.met))
    speed = f"{total.took:.1f} s, {total.runs / total.took:.1f} per second"
    _tell_of(total, f"\n{total.runs} seeds in {speed}", defect, cluster=cluster)
    unmet = missing(total.met, cluster=cluster)
    if unmet and not total.failed:
        print("never met:", ", ".join(unmet))
    return bool(total.failed or unmet)


def _find_defects(start: int, seeds: int, jobs: int) -> int:
    survived = 0
    for name, defect in DEFECTS.items():
        found = find(name, range(start, start + seeds), jobs=jobs)
        if found.first is not None:
            share = f"{found.hits}/{found.runs}"
            print(f"{name:36} {share:>9} seeds, first {found.first.seed:5}: {found.text[:140]}", flush=True)
        else:
            survived += 1
            others = f"; {found.others} failed otherwise" if found.others else ""
            print(f"{name:36} NOT FOUND by {'/'.join(defect.caught_by)} in {found.runs} seeds{others}", flush=True)
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
