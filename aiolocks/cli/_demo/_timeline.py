"""Shows records as a picture of 80 columns, with a row per worker and time from left to right, and in words.

A cell shows the state in its middle, so two holders share a column only if they did hold at the same time.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from .._screen import WIDTH, Glyphs, Line, Span
from ._checks import holds_of
from ._events import ASKED, DELETED, DIED, FAILED, HELD, LEFT, LOST, RENEWED, STOPPED, Event, of_kind

_LABEL = 12
_CELLS = 66
"""Number of columns for the name of a row, and for time."""

_STEPS = (0.02, 0.025, 0.04, 0.05, 0.08, 0.1, 0.2, 0.5, 1.0)
"""Possible durations of a cell in seconds."""

_STYLES = {"holds": "green", "waits": "dim", "renewed": "bold black on green", "ended": "bold red", "": ""}

_BAD = (STOPPED, DIED, LOST, DELETED, FAILED)


@dataclass(frozen=True, slots=True)
class Scale:
    """The time of each cell."""

    start: int
    step: float
    cells: int

    @classmethod
    def of(cls, start: int, end: int, expected: float) -> "Scale":
        """Return the finest scale with room for *end* and for *expected* seconds. Its cells end at *end*."""
        span = (end - start) / 1e9
        longest = max(span, expected)
        step = next((step for step in _STEPS if longest / step < _CELLS), longest / _CELLS)
        return cls(start, step, min(int(span / step) + 1, _CELLS))

    def moment(self, cell: float) -> int:
        """Return the time (ns) at which *cell* begins. Add a half for its middle."""
        return self.start + round(cell * self.step * 1e9)

    def cell(self, at: int) -> int:
        return min(max(int((at - self.start) / 1e9 / self.step), 0), self.cells - 1)


def legend(glyphs: Glyphs) -> list[Line]:
    """Return the meaning of the characters."""
    spans: list[Span] = [("   ", "")]
    for sign, meaning in (("waits", "waits"), ("holds", "holds"), ("renewed", "renewed"), ("ended", "stopped, dead")):
        spans += [(getattr(glyphs, sign), _STYLES[sign]), (f" {meaning}    ", "")]
    return [spans]


def picture(events: Sequence[Event], rows: Sequence[str], scale: Scale, glyphs: Glyphs) -> list[Line]:
    """Return a row per worker in *rows*, and the axis."""
    lines: list[Line] = []
    for row in rows:
        own = [event for event in events if event.worker == row]
        signs = [_state(own, scale.moment(cell + 0.5)) for cell in range(scale.cells)]
        for event in of_kind(own, RENEWED, STOPPED, DIED):
            signs[scale.cell(event.at)] = "renewed" if event.event == RENEWED else "ended"
        spans: list[Span] = [(f"   {row:{_LABEL - 3}}", "bold")]
        for sign, run in groupby(signs):
            spans.append((len(list(run)) * (getattr(glyphs, sign) if sign else " "), _STYLES[sign]))
        lines.append(spans)
    return [*lines, _axis(scale)]


def depth_row(events: Sequence[Event], scale: Scale) -> Line:
    """Return a row with the maximum number of holders in each cell."""
    holds = holds_of(events)
    digits = ""
    for cell in range(scale.cells):
        begin, end = scale.moment(cell), scale.moment(cell + 1)
        moments = [begin, *(hold.start for hold in holds if begin <= hold.start < end)]
        depth = max(sum(hold.start <= moment < hold.end for hold in holds) for moment in moments)
        digits += str(depth) if depth else " "
    return [(f"   {'at once':{_LABEL - 3}}", "dim"), (digits, "cyan")]


def story(events: Sequence[Event], start: int) -> list[Line]:
    """Return one line per event, with its time since *start*."""
    lines: list[Line] = []
    for event in events:
        phrase = _phrase(event)
        if phrase:
            style = _STYLES["ended"] if event.event in _BAD else ""
            first, *rest = textwrap.wrap(phrase, WIDTH - _LABEL - 9)
            since = f"{(event.at - start) / 1e9:5.2f} s  "
            lines.append([(f"   {event.worker:{_LABEL - 3}}", "bold"), (since, "dim"), (first, style)])
            lines += [[(" " * (_LABEL + 9) + more, style)] for more in rest]
    return lines


def _phrase(event: Event) -> str:
    phrases = {
        ASKED: "asks",
        HELD: f"holds, with fencing token {event.fence}",
        LEFT: "has finished, and releases",
        STOPPED: "is stopped in the middle of its work",
        LOST: f"gets LeaseLostError: {event.note}",
        DIED: event.note,
        DELETED: event.note,
        FAILED: f"fails: {event.note}",
    }
    return phrases.get(event.event, "")


def _state(own: Sequence[Event], moment: int) -> str:
    """Return the state of a worker at *moment*: "holds", "waits" or ""."""
    state = ""
    for event in own:
        if event.at > moment:
            break
        if event.event == ASKED:
            state = "waits"
        elif event.event == HELD:
            state = "holds"
        elif event.event in (LEFT, STOPPED, DIED, LOST, FAILED):
            state = ""
    return state


def _axis(scale: Scale) -> Line:
    tick = next(tick for tick in (0.25, 0.5, 1, 2, 5, 1000) if tick / scale.step >= 8)
    text = ""
    for at in range(int(scale.cells * scale.step / tick) + 1):
        cell = round(at * tick / scale.step)
        if cell < scale.cells:
            text = f"{text:{cell}}" if cell else text
            text += f"{at * tick:g} s"
    return [(" " * _LABEL + text, "dim")]
