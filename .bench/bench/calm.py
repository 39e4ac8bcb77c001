"""Repeats measurements from which a virtual machine's host took processor time: `steal` in Linux's /proc/stat.

If a processor is taken away in the middle of a measurement, the library looks slow. So a measurement that lost more
than a little is repeated, whatever its figures are, and by the same rule for every library.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from bench.figures import Results, Run, spread

CALM = 3.0
"""Maximum percent of busy processor time that the host may take from a measurement. An idle host takes 0 to 2 %, a host
with other work 5 to 30 %."""

FIGURE = "stolen_percent"

_KINDS = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"]
"""Kinds of time, in the order of /proc/stat. The numbers after them there are parts of these."""


def calmest(measure: Callable[[], Run], attempts: int, times: Callable[[], dict[str, int]] | None = None) -> Run:
    """Return the first run of *measure* that the host left alone, or else the least disturbed of so many attempts.

    Args:
        measure: Measures once.
        attempts: Maximum number of runs.
        times: Returns the time that the processors have spent, by kind; Linux's count if left out.
    """
    [run] = calmest_together(lambda: [measure()], attempts, times)
    return run


def calmest_together(
    measure: Callable[[], Sequence[Run]], attempts: int, times: Callable[[], dict[str, int]] | None = None
) -> list[Run]:
    """Do the same if *measure* returns several runs made at the same time."""
    times = times or processor_times
    found: list[tuple[float, list[Run]]] = []
    while len(found) < attempts and (not found or found[-1][0] > CALM):
        before = times()
        runs = list(measure())
        spent = {kind: ticks - before[kind] for kind, ticks in times().items() if kind not in {"idle", "iowait"}}
        percent = 100 * spent["steal"] / max(sum(spent.values()), 1) if spent else 0.0
        if spent:
            runs = [replace(run, figures={**run.figures, FIGURE: percent}) if run.figures else run for run in runs]
        found.append((percent, runs))
    return min(found, key=itemgetter(0))[1]


def processor_times() -> dict[str, int]:
    """Return the time that all processors have spent, by kind; nothing where the system does not tell."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return {}
    return dict(zip(_KINDS, map(int, line.split()[1:]), strict=False))


def remark(results: Results, attempts: int) -> str:
    """Return the line about the host below a table; empty if nothing is known."""
    found = spread([run for runs in results.values() for run in runs], FIGURE)
    if found is None:
        return ""
    taken = (
        f"The host took {found.median:.1f} % of the time in which processors had something to do "
        f"({found.least:.1f}–{found.greatest:.1f})."
    )
    again = (
        f" A run that lost more than {CALM:g} % was repeated, up to {attempts - 1} times, and the run that lost least "
        "counts."
    )
    return taken + again * (attempts > 1)
