"""Make mutants and count who is caught.

    python -m tests.mutants --sample 300 --seed 7          of all files
    python -m tests.mutants --file aiolocks/_grantors/wait_queue.py       all of one

The exit status is 0 if at least `--share` of those that can be noticed are. What became of each is kept in
`.mutants/`; `--resume` goes on from there, and tries survivors again. There stands, too, which tests run which lines:
it is recorded first, in about fifteen minutes, and again when much has changed since.
"""

import argparse
import random
import sys
import time

from tests.mutants.reached import PARTS, Reached
from tests.mutants.table import REPOSITORY, files
from tests.mutants.trial import SAME, SURVIVED, Record, copied, described, mutants_of, verdict


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", action="append", help="this one, or those of this folder; may be given again")
    parser.add_argument("--sample", type=int, help="so many, drawn from all")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="what the sample is drawn by")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the same sample; its survivors are tried again"
    )
    parser.add_argument("--share", type=float, default=0.92, help="what must be caught")
    parser.add_argument("--workers", type=int, default=2, help="processes for the tests of one mutant")
    parser.add_argument("--quick", action="store_true", help="try the quick part alone")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    options = parser.parse_args()
    chosen = [
        mutant for given in options.file or [""] for path in files(given) or [given] for mutant in mutants_of(path)
    ]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if options.list:
        print(*map(described, chosen), sep="\n")
        return 0
    named = [(described(mutant), mutant) for mutant in chosen]  # now, as the files may be edited meanwhile
    what = "-".join(map(str, options.file or ["all"])).replace("/", ".")
    path = REPOSITORY / ".mutants" / f"{what}-{options.sample}-{options.seed}.jsonl"
    print(f"{len(chosen)} mutants, seed {options.seed}; what becomes of them: {path}", flush=True)
    record = Record(path, resume=options.resume)
    parts = [Reached(part) for part in (["quick"] if options.quick else PARTS)]
    with copied(options.workers) as trial:
        for name, mutant in named:
            if record.known.get(name, SURVIVED) == SURVIVED:
                begun, outcome = time.monotonic(), verdict(trial, mutant, parts)
                record.add(name, outcome)
                print(f"{len(record.known):4} {time.monotonic() - begun:4.0f} s  {name}: {outcome}", flush=True)
    return _report({name: record.known[name] for name, _ in named}, options.share)


def _report(outcomes: dict[str, str], wanted: float) -> int:
    noticeable = [outcome for outcome in outcomes.values() if outcome != SAME]
    caught = sum(outcome != SURVIVED for outcome in noticeable)
    share = caught / len(noticeable) if noticeable else 1.0
    same = len(outcomes) - len(noticeable)
    print(f"\n{caught} of {len(noticeable)} caught, {share:.1%}; {same} that no test can notice. Survivors:")
    print(*sorted(name for name, outcome in outcomes.items() if outcome == SURVIVED), sep="\n")
    return int(share < wanted)


if __name__ == "__main__":
    sys.exit(main())
