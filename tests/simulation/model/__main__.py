"""Check the model of the mutex's protocol with TLC.

    python -m tests.simulation.model                       the sizes of CI
    python -m tests.simulation.model --large               larger ones, for the night: see how long each takes
    python -m tests.simulation.model --defects             each planted defect, and the steps to what it breaks
    python -m tests.simulation.model NAME …                these alone
    python -m tests.simulation.model "no tombstone" --trace        with all that TLC says

The exit status is 0 if the right protocol held, each defect was found, and nothing that ought to be met was missed.
"""

import argparse
import sys

from .bounds import DEFECTS, LARGE, RIGHT
from .checker import Bounds, check, marks

A_NIGHT = 4 * 3600.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.model", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a size or a defect")
    parser.add_argument("--large", action="store_true", help="the larger sizes")
    parser.add_argument("--defects", action="store_true", help="the defects")
    parser.add_argument("--trace", action="store_true", help="print TLC's own report")
    options = parser.parse_args()
    sizes = LARGE if options.large else RIGHT
    chosen = options.names or list(DEFECTS if options.defects else sizes)
    unknown = [name for name in chosen if name not in sizes and name not in DEFECTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are {', '.join([*sizes, *DEFECTS])}")
    met: set[str] = set()
    wrong = False
    for name in chosen:
        variant = "right" if name in sizes else name
        wrong |= not _look(name, sizes.get(name) or DEFECTS[name], variant, met, tracing=options.trace)
    unmet = marks() - met
    if unmet and chosen == list(sizes):
        wrong = True
        print("never met:", ", ".join(sorted(unmet)))
    return int(wrong)


def _look(name: str, bounds: Bounds, variant: str, met: set[str], *, tracing: bool) -> bool:
    right = variant == "right"
    outcome = check(bounds, variant, coverage=right, limit=A_NIGHT)
    met |= outcome.met
    if tracing:
        print(outcome.text)
    size = f"{outcome.distinct:,} states in {outcome.seconds:.0f} s, depth {outcome.depth}"
    verdict = f"{outcome.violated} is violated" if outcome.violated else "holds"
    print(f"{name:36} {verdict}; {size}", flush=True)
    if outcome.violated:
        print("   ", " ".join(outcome.steps))
    return (
        (outcome.violated is None and outcome.distinct >= bounds.least) if right else outcome.violated in bounds.holds
    )


if __name__ == "__main__":
    sys.exit(main())
