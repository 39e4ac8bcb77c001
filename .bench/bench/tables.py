"""Tables and bars as plain text that is Markdown too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.figures import Results, Run, Spread, remarks, spread

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, and its text for a row's runs."""

    title: str
    text: Callable[[str, Sequence[Run]], str]


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise: the bar, what was measured, and whether that meets the bar. None means not measured."""

    bar: str
    figure: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report of one scenario."""

    tables: Sequence[str]
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = field(default=())


def measured(title: str, figure: str, decimals: int = 0, *, scale: float = 1.0) -> Column:
    """Return the column of a figure: its median, with least–greatest when there were several runs."""

    def text(_: str, runs: Sequence[Run]) -> str:
        found = spread(runs, figure)
        if found is None:
            return NOTHING
        found = Spread(found.median * scale, found.least * scale, found.greatest * scale)
        middle, least, greatest = (number(value, decimals) for value in (found.median, found.least, found.greatest))
        return middle if least == greatest else f"{middle} ({least}–{greatest})"

    return Column(title, text)


def compared(title: str, figure: str, base: Callable[[str], str], results: Results) -> Column:
    """Return the column of ratios: a row's median over that of its base row."""

    def text(row: str, runs: Sequence[Run]) -> str:
        own, other = spread(runs, figure), spread(results.get(base(row), ()), figure)
        return NOTHING if own is None or other is None or not other.median else f"{own.median / other.median:.2f} ×"

    return Column(title, text)


def remarked(title: str = "what happened") -> Column:
    """Return the column of remarks."""
    return Column(title, lambda _, runs: "; ".join(remarks(runs)))


def table(rows_title: str, columns: Sequence[Column], results: Results, rows: Sequence[str] | None = None) -> str:
    """Return one table with a line for each of *rows*; all of them if left out."""
    chosen = list(results) if rows is None else [row for row in rows if row in results]
    lines = [[rows_title, *(column.title for column in columns)]]
    lines += [[row, *(column.text(row, results[row]) for column in columns)] for row in chosen]
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return *lines* of cells as a Markdown table. The first line is its head, and later columns are right-aligned."""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]

    def written(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if place == 0 else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    return "\n".join([written(lines[0]), written(rule), *(written(line) for line in lines[1:])])


def bars_table(bars: Sequence[Bar]) -> str:
    """Return the bars as a table."""
    verdicts = {True: "met", False: "NOT MET", None: "not measured"}
    return aligned([["bar", "measured", "verdict"], *([bar.bar, bar.figure, verdicts[bar.met]] for bar in bars)])


def at_least(bar: str, value: float | None, bound: float, text: str = "{:.2f} ×") -> Bar:
    """Return a bar that is met from *bound* upwards."""
    return Bar(bar, NOTHING if value is None else text.format(value), None if value is None else value >= bound)


def at_most(bar: str, value: float | None, bound: float, text: str = "{:.2f}") -> Bar:
    """Return a bar that is met up to *bound*."""
    return Bar(bar, NOTHING if value is None else text.format(value), None if value is None else value <= bound)


def below(bar: str, value: float | None, bound: float, text: str = "{:.2f}") -> Bar:
    """Return a bar that is met below *bound*."""
    return Bar(bar, NOTHING if value is None else text.format(value), None if value is None else value < bound)


def number(value: float, decimals: int = 0) -> str:
    """Return a number with commas between thousands."""
    return f"{value:,.{decimals}f}"
