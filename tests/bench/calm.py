"""What a virtual machine's host takes for others, without which nothing here says much: `steal` in Linux's /proc/stat.

A processor that is taken away in the middle of a measurement shows as a slow library. So a measurement that lost more
than a little is made again; this asks nothing of its figures, and is the same for every library.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.bench.figures import Results, Run, Spread, spread

CALM = 2.0
"""Percent of the processors' time that the host may take from a measurement: left alone, it takes 0 to 1; when it has
other work, 5 to 25."""

FIGURE = "stolen_percent"

_STEAL = 7
"""Its place among the kinds of time; the two behind it are parts of others."""


def calmest(measure: Callable[[], Run], attempts: int, times: Callable[[], list[int]] | None = None) -> Run:
    """Return what *measure* gives when the host leaves it alone, or has disturbed it least in so many attempts.

    Args:
        measure: Measures once.
        attempts: How often at most.
        times: Returns the time that the processors have spent, by kind; Linux's count if left out.
    """
    times = times or processor_times
    runs: list[Run] = []
    while len(runs) < attempts and (not runs or runs[-1].figures.get(FIGURE, 0.0) > CALM):
        before = times()
        run = measure()
        spent = [after - earlier for earlier, after in zip(before, times(), strict=True)]
        if run.figures and sum(spent):
            run = replace(run, figures={**run.figures, FIGURE: 100 * spent[_STEAL] / sum(spent)})
        runs.append(run)
    return min(runs, key=lambda run: run.figures.get(FIGURE, 0.0))


def processor_times() -> list[int]:
    """Return the time that all processors have spent, by kind; nothing where the system does not tell."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return []
    return [int(ticks) for ticks in line.split()[1 : _STEAL + 2]]


def remark(results: Results, attempts: int) -> str:
    """Return what to say of the host below a table; nothing if nothing is known."""
    found: Spread | None = spread([run for runs in results.values() for run in runs], FIGURE)
    if found is None:
        return ""
    return (
        f"The host took {found.median:.1f} % of the processors' time from these runs "
        f"({found.least:.1f}–{found.greatest:.1f}). What lost more than {CALM:g} % was measured again, up to "
        f"{attempts - 1} times, and of these the run counts that lost least."
    )
