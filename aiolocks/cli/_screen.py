"""Prints styled lines: in colour on a terminal if rich is installed, otherwise as plain text."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live as RichLive
    from rich.text import Text

WIDTH = 80

Span = tuple[str, str]
"""Text and its style for rich; "" is plain."""

Line = Sequence[Span]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a timeline."""

    holds: str = "█"
    waits: str = "·"
    renewed: str = "▲"
    ended: str = "✗"


_ASCII = Glyphs("#", ".", "^", "x")


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        encoding = sys.stdout.encoding or "ascii"
        self.glyphs = Glyphs() if _can_say("█·▲✗", encoding) else _ASCII
        self._encoding = encoding
        self._console = _console()

    @property
    def moves(self) -> bool:
        """Whether the terminal can redraw lines."""
        console = self._console
        return console is not None and not console.is_dumb_terminal and console.width >= WIDTH and console.height >= 24

    def write(self, *lines: Line) -> None:
        """Write the lines and flush."""
        for line in lines:
            if self._console is None:
                print(
                    "".join(text for text, _ in line).rstrip().encode(self._encoding, "replace").decode(self._encoding)
                )
            else:
                self._console.print(_styled(line), soft_wrap=True)
        sys.stdout.flush()

    def moving(self) -> "Moving":
        """Return a block that redraws lines, and clears them at its end."""
        return Moving(self._console if self.moves else None)


class Moving:
    """Lines on the screen that are redrawn. It shows nothing if the terminal cannot redraw."""

    def __init__(self, console: "Console | None") -> None:
        self._live: RichLive | None = None
        if console is not None:
            from rich.live import Live

            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stderr=False)

    def draw(self, lines: Callable[[], Iterable[Line]]) -> None:
        """Replace the drawn lines."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text("\n").join(_styled(line) for line in lines()), refresh=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()


def _styled(line: Line) -> "Text":
    from rich.text import Text

    return Text.assemble(*line, no_wrap=True)


def _console() -> "Console | None":
    """Return rich's console on a terminal, else None. rich obeys NO_COLOR itself."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False, emoji=False, markup=False)


def _can_say(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
