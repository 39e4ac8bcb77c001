"""Draw the pictures of the documents in examples/pictures: `python .docs/pictures.py`, with the group `docs`.

Each is one SVG with a background of its own. It is light or dark as the reader prefers.
"""

import io
import re
import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURES = REPOSITORY / "examples" / "pictures"

LIGHT = {"back": "#ffffff", "edge": "#d0d7de", "text": "#1f2328", "dim": "#59636e", "good": "#1a7f37", "bad": "#cf222e"}
DARK = {"back": "#0d1117", "edge": "#3d444d", "text": "#f0f6fc", "dim": "#9198a1", "good": "#3fb950", "bad": "#f85149"}


def colours(palette: dict[str, str]) -> str:
    return "".join(f".{name}{{fill:{colour}}}.{name}-line{{stroke:{colour}}}" for name, colour in palette.items())


def svg(title: str, width: int, height: int, shapes: Iterable[str]) -> str:
    """Return a picture of *shapes*, whose colours are classes."""
    style = (
        "text{font:14px system-ui,sans-serif}.bold{font-weight:600}.code{font-family:ui-monospace,monospace}"
        ".small{font-size:12px}[class*=-line]{fill:none;stroke-width:2}"
        f"{colours(LIGHT)}@media(prefers-color-scheme:dark){{{colours(DARK)}}}"
    )
    lines = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img">\n<title>{escape(title)}</title>\n<style>{style}</style>\n'
        f'<rect class="back" width="{width}" height="{height}" rx="8"/>\n'
        f'<rect class="edge-line" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="8"/>\n{lines}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "text", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str, more: str = "") -> str:
    return f'<path class="{kind}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"{more}/>'


def arrow(x1: float, y1: float, x2: float, y2: float, kind: str = "text") -> str:
    """Return a horizontal or vertical line with a head at its end."""
    right, down = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    side, back = (abs(down) * 5, abs(right) * 5), (right * 9, down * 9)
    x, y = x2 - back[0], y2 - back[1]
    corners = f"L{x - side[0]:g} {y - side[1]:g}L{x + side[0]:g} {y + side[1]:g}"
    head = f'<path class="{kind}" d="M{x2:g} {y2:g}{corners}Z"/>'
    return line(x1, y1, x2 - right * 4, y2 - down * 4, f"{kind}-line") + head


def waits(x: float, y: float, width: float) -> str:
    return line(x, y, x + width, y, "dim-line", ' stroke-dasharray="2 5"')


def holds(x: float, y: float, width: float) -> str:
    return f'<rect class="good" x="{x:g}" y="{y - 8:g}" width="{width:g}" height="16" rx="2"/>'


def renewed(x: float, y: float) -> str:
    return f'<path class="back" d="M{x - 5:g} {y + 4:g}h10l-5 -9Z"/>'


def ended(x: float, y: float) -> str:
    return f'<path class="bad-line" d="M{x - 6:g} {y - 6:g}l12 12m0 -12l-12 12"/>'


Row = tuple[str, list[tuple[str, float, float]]]
"""A worker, and its states: "waits" or "holds" from one second to another, "renewed" or "ended" at one."""

STORIES: list[tuple[str, float, float, list[Row]]] = [
    (
        "A job takes longer than its TTL of 1.2 s: the lease is renewed, so cleo waits until ben is done.",
        4.5,
        1.0,
        [
            ("ben", [("holds", 0, 4.0), *(("renewed", at * 0.4, 0) for at in range(1, 10))]),
            ("cleo", [("waits", 0.5, 4.0), ("holds", 4.0, 4.3)]),
        ],
    ),
    (
        "gus dies while it holds the lock: dan gets the lock when the TTL of 1.5 s is over.",
        2.5,
        0.5,
        [
            ("gus", [("holds", 0, 0.7), ("renewed", 0.5, 0), ("ended", 0.7, 0)]),
            ("dan", [("waits", 0.1, 2.0), ("holds", 2.0, 2.3)]),
        ],
    ),
]
"""The caption, the seconds shown, the seconds between two marks, and the rows."""


def timelines() -> str:
    left, room = 80, 680

    def shapes() -> Iterator[str]:
        yield waits(24, 26, 36) + text(68, 31, "waits")
        yield holds(134, 26, 36) + text(178, 31, "holds")
        yield holds(248, 26, 24) + renewed(260, 26) + text(280, 31, "renewed")
        yield ended(370, 26) + text(384, 31, "dies")
        y = 72
        for told, seconds, mark, rows in STORIES:
            yield text(24, y, told, "text bold")
            scale = room / seconds
            for name, states in rows:
                y += 30
                yield text(24, y + 5, name, "text code")
                for state, begin, end in states:
                    x = left + begin * scale
                    if state in ("waits", "holds"):
                        yield (waits if state == "waits" else holds)(x, y, (end - begin) * scale)
                    else:
                        yield renewed(x, y) if state == "renewed" else ended(x, y)
            y += 32
            for at in range(int(seconds / mark) + 1):
                yield text(left + at * mark * scale, y, f"{at * mark:g} s", "dim small", "middle")
            y += 38

    return svg("Two timelines of workers that wait for a lock and hold it", 800, 306, shapes())


def hand_off() -> str:
    """Draw a release that grants the lock to the first waiter."""
    holder, server, waiter = 130, 400, 670

    def shapes() -> Iterator[str]:
        for x, name in ((holder, "holder"), (server, "Redis"), (waiter, "waiter")):
            yield f'<rect class="edge-line" x="{x - 60}" y="20" width="120" height="32" rx="6"/>'
            yield text(x, 41, name, "text bold", "middle")
            yield line(x, 52, x, 400, "edge-line")
        yield f'<rect class="good" x="{holder - 5}" y="112" width="10" height="176"/>'
        yield f'<rect class="good" x="{waiter - 5}" y="322" width="10" height="66"/>'
        steps = (
            (84, holder, server, "1  acquire"),
            (112, server, holder, "granted, fencing token 33"),
            (148, waiter, server, "2  acquire"),
            (176, server, waiter, "busy: first in the queue"),
            (212, holder, server, "3  renew, every third of the TTL"),
            (288, holder, server, "4  release"),
            (322, server, waiter, "message: granted, fencing token 34"),
            (350, server, holder, "released"),
        )
        for y, begin, end, words in steps:
            yield text((begin + end) / 2, y - 7, words, "text small", "middle")
            yield arrow(begin + (6 if end > begin else -6), y, end + (-6 if end > begin else 6), y)
        yield text(waiter - 12, 236, "sleeps until the message", "dim small", "end")
        yield text(
            400, 424, "One script in Redis releases the lock and grants it to the first waiter.", "dim", "middle"
        )

    return svg("How a lock passes from its holder to the first waiter", 800, 444, shapes())


ENDS = (
    ("released", "your block ended", "good"),
    ("handed off", "another process goes on with it", "good"),
    ("lost", "not renewed in time, or gone from Redis: LeaseLostError", "bad"),
    ("revoked", "an operator ended it: LeaseLostError", "bad"),
    ("forked", "in the child of a fork: the parent still holds it", "bad"),
)
"""How a lease ends, as `aiolocks._engine.lease_state.End` has it, and what that means to its holder."""


def lease_states() -> str:
    def shapes() -> Iterator[str]:
        middle = 150
        yield f'<rect class="good-line" x="24" y="{middle - 26}" width="120" height="52" rx="26"/>'
        yield text(84, middle + 5, "held", "text bold", "middle")
        yield f'<path class="text-line" d="M60 {middle - 26}C50 76 118 76 108 {middle - 34}"/>'
        yield f'<path class="text" d="M108 {middle - 26}l-6 -9h11Z"/>'
        yield text(24, 54, "renewed, every", "text small") + text(24, 70, "third of the TTL", "text small")
        yield line(144, middle, 190, middle, "text-line")
        top, step = 54, 48
        yield line(190, top, 190, top + step * (len(ENDS) - 1), "text-line")
        for at, (end, meaning, colour) in enumerate(ENDS):
            y = top + at * step
            yield arrow(190, y, 226, y)
            yield f'<rect class="{colour}-line" x="228" y="{y - 17}" width="112" height="34" rx="6"/>'
            yield text(284, y + 5, end, "text bold", "middle")
            yield text(354, y + 5, meaning, "dim")

    return svg("The states of a lease: it is held and renewed until one of five ends", 800, 300, shapes())


def watch() -> str:
    """Draw `aiolocks watch` with the sample of its tests."""
    from rich.console import Console
    from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

    from aiolocks.cli._watch._live import table
    from tests.surface.test_watch import sample

    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    board = sample()
    console.print(table(board, board.listed(), 100, 24, 1))
    light, dark = (
        console.export_svg(title="aiolocks watch", unique_id="watch", theme=theme, clear=False)
        for theme in (DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME)
    )
    light, dark = (re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL) for drawn in (light, dark))
    filled = re.compile(r'fill="(#\w+)"')
    rules = dict(re.findall(r"(\.watch-r\d+) \{ (fill: #\w+)", dark))
    rules |= {
        f'[fill="{ours}"]': f"fill: {theirs}"
        for ours, theirs in zip(filled.findall(light), filled.findall(dark), strict=True)
    }
    dark_rules = "".join(f"{selector}{{{rule}}}" for selector, rule in rules.items())
    light = light.replace("rgba(255,255,255,0.35)", LIGHT["edge"])
    drawn = light.replace("</style>", f"@media(prefers-color-scheme:dark){{{dark_rules}}}</style>")
    return "\n".join(part.rstrip() for part in drawn.splitlines()) + "\n"


DRAWN = {"timelines": timelines, "hand-off": hand_off, "lease-states": lease_states, "watch": watch}

if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    for name, draw in DRAWN.items():
        PICTURES.joinpath(f"{name}.svg").write_text(draw(), encoding="utf-8")
