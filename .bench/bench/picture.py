"""Draws what was measured: one row of bars per scenario, one panel per figure, medians with least and greatest."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from bench.figures import Results, Spread, spread
from bench.scenario import Scenario

_COLOURS = {True: "#c0392b", False: "#7f8c8d"}
"""Ours, and others'."""


def draw(path: Path, measured: Mapping[str, tuple[Scenario, Results]], title: str) -> None:
    """Write one picture of all scenarios that were measured.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    panels = [
        (scenario.title, label, _bars(results, figure))
        for scenario, results in measured.values()
        for figure, label in scenario.panels
    ]
    panels = [(name, label, bars) for name, label, bars in panels if bars]
    heights = [0.6 + 0.22 * len(bars) for _, _, bars in panels] or [1.0]
    page = Figure(figsize=(11, sum(heights) + 0.9 * len(heights)), layout="constrained")
    page.suptitle("\n".join(wrap(title, 120)), fontsize=8)
    grid: Any = page.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
    for (name, label, bars), axes in zip(panels, grid[:, 0], strict=False):
        _draw_bars(axes, bars)
        axes.set_title(f"{name}: {label}", fontsize=9, loc="left")
    page.savefig(path, dpi=120)


def _bars(results: Results, figure: str) -> list[tuple[str, Spread]]:
    found = [(row, spread(runs, figure)) for row, runs in results.items()]
    return [(row, one) for row, one in found if one is not None]


def _draw_bars(axes: Any, bars: list[tuple[str, Spread]]) -> None:
    rows = [row for row, _ in bars]
    medians = [one.median for _, one in bars]
    reach = [[one.median - one.least for _, one in bars], [one.greatest - one.median for _, one in bars]]
    colours = [_COLOURS[row.startswith("aiolocks")] for row in rows]
    axes.barh(range(len(rows)), medians, xerr=reach, color=colours, error_kw={"elinewidth": 0.8})
    axes.set_yticks(range(len(rows)), rows, fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
