"""What was measured: the figures of one run, and statistics over several runs of the same case."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Parameters: TypeAlias = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure, in a fresh process: a library and its task."""

    row: str
    """Its name in the table, unique within its scenario."""
    library: str
    parameters: Parameters = field(default_factory=dict)
    cannot: str = ""
    """Why the library cannot do it: then nothing is run, and the table says this."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one measurement gave."""

    figures: dict[str, float] = field(default_factory=dict)
    """By name; the name ends with the unit if it is not a plain number: `wait_p50_ms`."""
    remarks: tuple[str, ...] = ()
    """What really happened where a figure alone would mislead: errors, what a library cannot do."""
    counted: dict[str, int] = field(default_factory=dict)
    """The same with a number in front: ``{"of 1,000 tasks failed: MaxConnectionsError": 900}``."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several runs, with the least and the greatest."""

    median: float
    least: float
    greatest: float


Results: TypeAlias = Mapping[str, Sequence[Run]]
"""All runs of one scenario, by row."""


def spread(runs: Sequence[Run], figure: str) -> Spread | None:
    """Return what *runs* say about one figure, or None if none of them has it."""
    found = [run.figures[figure] for run in runs if figure in run.figures]
    return Spread(statistics.median(found), min(found), max(found)) if found else None


def median(results: Results, row: str, figure: str) -> float | None:
    """Return the median of one row's figure, or None if it was not measured."""
    found = spread(results.get(row, ()), figure)
    return None if found is None else found.median


def greatest(results: Results, row: str, figure: str) -> float | None:
    """Return the worst run's figure if the greatest is the worst, or None if it was not measured."""
    found = spread(results.get(row, ()), figure)
    return None if found is None else found.greatest


def ratio(results: Results, row: str, to: str, figure: str) -> float | None:
    """Return *row*'s median divided by that of the row *to*, or None if one is missing."""
    over, under = median(results, row, figure), median(results, to, figure)
    return None if over is None or not under else over / under


def remarks(runs: Sequence[Run]) -> list[str]:
    """Return each different remark once, in order; counted ones with the median, and the least and greatest, count."""
    found = list(dict.fromkeys(remark for run in runs for remark in run.remarks))
    for text in dict.fromkeys(text for run in runs for text in run.counted):
        counts = [run.counted.get(text, 0) for run in runs]
        least, most = min(counts), max(counts)
        found.append(f"{statistics.median(counts):,.0f}{f' ({least:,}–{most:,})' if least < most else ''} {text}")
    return found
