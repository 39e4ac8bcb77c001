"""Make mutants and count who is caught.

    python -m tests.mutants --sample 300 --seed 7          of all files
    python -m tests.mutants --file aiolocks/_line.py       all of one
    python -m tests.mutants --check-table                  how long the tests of each file take, and that they pass

The exit status is 0 if at least `--share` of those that can be noticed are. What became of each is kept in
`.mutants/`; `--resume` goes on from there.
"""

import argparse
import random
import sys
import time
from collections import Counter

from tests.mutants.mutant import Mutant
from tests.mutants.table import REPOSITORY, answered_by, files
from tests.mutants.trial import (
    CAUGHT,
    SAME,
    SURVIVED,
    Record,
    Trial,
    copied,
    described,
    mutants_of,
    verdict,
    whole_verdict,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", action="append", help="mutate this one; may be given again; all if left out")
    parser.add_argument("--sample", type=int, help="so many, drawn from all")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="what the sample is drawn by")
    parser.add_argument("--resume", action="store_true", help="go on where the same sample was stopped")
    parser.add_argument("--share", type=float, default=0.92, help="what must be caught")
    parser.add_argument("--workers", type=int, default=4, help="processes for the tests of one mutant")
    parser.add_argument("--own", action="store_true", help="do not try survivors with README's command")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument("--check-table", action="store_true", help="run what the files answer to, without a mutant")
    options = parser.parse_args()
    chosen = [mutant for path in options.file or files() for mutant in mutants_of(path)]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if options.list:
        print(*map(described, chosen), sep="\n")
        return 0
    with copied(options.workers) as trial:
        if options.check_table:
            return _check_table(trial, options.file or files())
        what = "-".join(map(str, options.file or ["all"])).replace("/", ".")
        path = REPOSITORY / ".mutants" / f"{what}-{options.sample}-{options.seed}.jsonl"
        print(f"{len(chosen)} mutants, seed {options.seed}; what becomes of them: {path}", flush=True)
        return _try_all(trial, chosen, Record(path, resume=options.resume), options)


def _try_all(trial: Trial, chosen: list[Mutant], record: Record, options: argparse.Namespace) -> int:
    for number, mutant in enumerate(chosen, 1):
        name = described(mutant)
        if name in record.known:
            continue
        begun = time.monotonic()
        outcome = verdict(trial, mutant)
        if outcome == SURVIVED and not options.own:
            outcome = whole_verdict(trial, mutant)
        record.add(name, outcome)
        print(f"{number:4} {outcome:10} {time.monotonic() - begun:4.0f} s  {name}", flush=True)
    return _report(Counter(record.known[described(mutant)] for mutant in chosen), chosen, record, options.share)


def _report(counts: Counter[str], chosen: list[Mutant], record: Record, wanted: float) -> int:
    noticeable = counts[CAUGHT] + counts[SURVIVED]
    share = counts[CAUGHT] / noticeable if noticeable else 1.0
    print(f"\n{counts[CAUGHT]} of {noticeable} caught, {share:.1%}; {counts[SAME]} that no test can notice. Survivors:")
    print(*sorted(name for name in map(described, chosen) if record.known[name] == SURVIVED), sep="\n")
    return int(share < wanted)


def _check_table(trial: Trial, paths: list[str]) -> int:
    bad = 0
    for tests in dict.fromkeys(map(answered_by, paths)):
        begun = time.monotonic()
        failed = trial.fails(trial.own(tests), tests.rows)
        bad += failed
        names = ", ".join(path.rpartition("/")[2] for path in paths if answered_by(path) == tests)
        print(f"{time.monotonic() - begun:5.1f} s  {'FAILED' if failed else 'passed'}  {names}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
