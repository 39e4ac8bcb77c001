"""Two versions of aiolocks in turns: this checkout's, and that of another one on the same machine.

Both are measured at once, but only one runs at a time, each for a fiftieth of a second. So rates are half of what they
are alone, and waits include those pauses. The comparison is between equal shares of the same seconds.

The scenarios are this checkout's for both; of the other one only its package `aiolocks` is used. Each measurement has a
process of its own, which refuses to go on with a package from anywhere else.
"""

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from bench.calm import FIGURE as STOLEN
from bench.calm import calmest_together, remark
from bench.figures import Case, Run, remarks
from bench.processes import BENCH, PACKAGE_VARIABLE, REPOSITORY, Slices
from bench.running import measured
from bench.scale import Scale
from bench.scenario import Scenario
from bench.tables import NOTHING, aligned, number

NO_SLOWER = 0.97
"""Minimum ratio, in the median of five turns, of a version that counts as no slower: equal versions differ so much."""

_MORE_IS_FASTER = ("pairs_per_s", "handoffs_per_s")
_LESS_IS_FASTER = ("release_us",)
"""Figures that say how fast a version is. The others are printed and not judged: most are costs, waits or counts."""


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two versions: where its package is, and the environment in which a process imports it."""

    name: str
    checkout: Path
    variables: Mapping[str, str]

    def __str__(self) -> str:
        commit = _git(self.checkout, "describe", "--always", "--abbrev=10", "--exclude=*")
        changed = " and changes" if commit and _git(self.checkout, "status", "--porcelain", "--", "aiolocks") else ""
        return f"{self.checkout}{f' at {commit}' if commit else ''}{changed}"


Turns = Mapping[str, Mapping[str, Sequence[Run]]]
"""All runs of one scenario: by row, then by the version's name."""


@contextmanager
def versions(other: Path) -> Iterator[tuple[Version, Version]]:
    """Yield this version and that of the checkout *other*.

    Raises:
        ValueError: There is no package aiolocks in *other*.
    """
    if not (other / "aiolocks" / "__init__.py").is_file():
        raise ValueError(f"{other} has no aiolocks/__init__.py")
    with tempfile.TemporaryDirectory(prefix="aiolocks-bench-") as folder:
        yield (
            _version("this", REPOSITORY, Path(folder, "this")),
            _version("other", other.resolve(), Path(folder, "other")),
        )


def _version(name: str, checkout: Path, shelf: Path) -> Version:
    # A folder with nothing but the package, so that `bench` and `tests` come from this checkout for both.
    shelf.mkdir()
    package = shelf / "aiolocks"
    package.symlink_to(checkout / "aiolocks", target_is_directory=True)
    paths = [str(shelf), str(BENCH), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return Version(
        name,
        checkout,
        {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONSAFEPATH": "1",  # `python -m` would put the working directory, which is this checkout, first
            # Each its own bytecode: code read from a .pyc file ran 4 % slower than the same, compiled in the process.
            "PYTHONPYCACHEPREFIX": str(shelf / "bytecode"),
            "PYTHONDONTWRITEBYTECODE": "",
            PACKAGE_VARIABLE: str(checkout / "aiolocks"),
        },
    )


def run_in_turns(
    scenario: Scenario, scale: Scale, pair: tuple[Version, Version], progress: Callable[[str], None]
) -> dict[str, dict[str, list[Run]]]:
    """Measure each case of aiolocks in so many turns: both versions, each in every other slice; see `Turns`."""
    cases = scenario.cases(scale, ["aiolocks"])
    results: dict[str, dict[str, list[Run]]] = {case.row: {one.name: [] for one in pair} for case in cases}

    def take(number: int, case: Case) -> None:
        progress(f"{scenario.name} {number + 1}/{scale.runs}: {case.row}")
        for version, run in zip(pair, calmest_together(lambda: both(case), scale.attempts), strict=True):
            results[case.row][version.name].append(run)

    fresh = replace(scale, fresh=True)  # a process imports one version only

    def both(case: Case) -> list[Run]:
        with Slices(len(pair)) as slices, ThreadPoolExecutor(len(pair)) as threads:
            return list(
                threads.map(lambda version: measured(scenario, case, fresh, version.variables, slices.sharing), pair)
            )

    with ThreadPoolExecutor(scale.at_once) as threads:
        each = map if scale.at_once == 1 else threads.map  # alone in this thread, which an interruption ends
        for turn in range(scale.runs):
            list(each(take, [turn] * len(cases), cases))
    return results


def table(turns: Turns) -> str:
    """Return a table with the medians of every figure, their ratio, and a verdict for the figures that show speed."""
    lines = [["case", "figure", "this", "other", "this / other", "verdict"]]
    for row, (this, other) in _pairs(turns):
        figures = dict.fromkeys(chain.from_iterable(run.figures for run in (*this, *other)))
        lines += [
            [row, figure, _median(this, figure), _median(other, figure), *_verdict(this, other, figure)]
            for figure in figures
            if figure != STOLEN
        ]
    return aligned(lines)


def notes(turns: Turns, attempts: int) -> list[str]:
    """Return the remarks on the runs, and how much time the host took away."""
    told = []
    for row, pair in _pairs(turns):
        told += [
            f"{row}, {name}: {what}"
            for name, runs in zip(("this", "other"), pair, strict=True)
            for what in remarks(runs)
        ]
    every = {f"{row} {name}": runs for row, each in turns.items() for name, runs in each.items()}
    return [*told, *filter(None, [remark(every, attempts)])]


def slower(turns: Turns) -> list[str]:
    """Return the cases and figures in which this version is slower than the other one."""
    return [
        f"{row}: {figure} {found:.3f}"
        for row, (this, other) in _pairs(turns)
        for figure in (*_MORE_IS_FASTER, *_LESS_IS_FASTER)
        if (found := speed(this, other, figure)) is not None and found < NO_SLOWER
    ]


def speed(this: Sequence[Run], other: Sequence[Run], figure: str) -> float | None:
    """Return how many times as fast as the other this version is; None if *figure* does not show speed."""
    found = ratio(this, other, figure)
    if found is None or figure in _MORE_IS_FASTER:
        return found
    return 1 / found if figure in _LESS_IS_FASTER and found else None


def ratio(this: Sequence[Run], other: Sequence[Run], figure: str) -> float | None:
    """Return the median of the turns' ratios, this version's figure to the other's; None if one of them is missing.

    Each turn has a ratio of its own, as a shared machine can be six times as fast in one turn as in the next.
    """
    turns = [(one.figures.get(figure), another.figures.get(figure)) for one, another in zip(this, other, strict=True)]
    found = [over / under for over, under in turns if over is not None and under]
    return statistics.median(found) if found else None


def _pairs(turns: Turns) -> list[tuple[str, tuple[Sequence[Run], Sequence[Run]]]]:
    return [(row, (each["this"], each["other"])) for row, each in turns.items()]


def _median(runs: Sequence[Run], figure: str) -> str:
    found = [run.figures[figure] for run in runs if figure in run.figures]
    if not found:
        return NOTHING
    decimals = 0 if min(map(abs, found)) >= 1000 else 2
    middle, least, greatest = (number(value, decimals) for value in (statistics.median(found), min(found), max(found)))
    return middle if least == greatest else f"{middle} ({least}–{greatest})"


def _verdict(this: Sequence[Run], other: Sequence[Run], figure: str) -> list[str]:
    found, fast = ratio(this, other, figure), speed(this, other, figure)
    verdict = "" if fast is None else "no slower" if fast >= NO_SLOWER else "SLOWER"
    return [NOTHING if found is None else f"{found:.3f}", verdict]


def _git(checkout: Path, *arguments: str) -> str:
    """Return what git says of a checkout; nothing where it is none, or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=10)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
