"""The screen of `watch`, and the keys that change it."""

import asyncio
import os
import re
import sys
import termios
import tty
from contextlib import suppress
from typing import final

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .. import _ls, _names
from .._arguments import shown
from ._board import SORTS, Board
from ._watcher import Watcher

_KEYS = {"\x1b[A": "up", "k": "up", "\x1b[B": "down", "j": "down", "\r": "open", "\n": "open", "\x1b": "back"}
_TYPED = re.compile(r"(?s)\x1b\[[A-Z]|.")
"""One key. One read may return several."""

_WIDE = 100
"""Number of columns from which the column of the holder is wider."""

_AROUND = 4
"""Number of lines of the screen that are not names."""


def table(
    board: Board, rows: list[_names.Name], width: int, height: int, chosen: int = -1, typing: bool = False
) -> RenderableType:
    """Return the list of names as a picture of up to *height* lines."""
    room = max(height - _AROUND, 1)
    first = max(min(chosen - room // 2, len(rows) - room), 0)
    listed = Table(box=None, expand=True, pad_edge=False, header_style="bold", show_edge=False)
    listed.add_column("NAME", ratio=3, no_wrap=True, overflow="ellipsis")
    listed.add_column("KIND", width=9, no_wrap=True)
    listed.add_column("HELD", width=6, justify="right", no_wrap=True)
    listed.add_column("LEFT", width=6, justify="right", no_wrap=True)
    listed.add_column("WAITING", width=7, justify="right", no_wrap=True)
    listed.add_column("BY", ratio=4 if width >= _WIDE else 2, no_wrap=True, overflow="ellipsis")
    for at, name in enumerate(rows[first : first + room], first):
        waiting = Text(_ls.waiting(name) if name.waiting else "", style="yellow" if name.waiting else "")
        left = Text(_ls.duration(name.remaining), style="red" if (name.remaining or 9) < 1 else "")
        by = Text(": ".join(filter(None, (_ls.by(name), _ls.note(name)))))
        listed.add_row(
            Text(shown(name.name)), Text(name.kind, style="cyan"), _ls.duration(name.seconds), left, waiting, by,
            style=Style(reverse=True) if at == chosen else None,
        )  # fmt: skip
    below = len(rows) - first - room
    return Group(
        _heading(board), listed, Text(f"{below:,} more below" if below > 0 else ""), _help(board, typing, width)
    )


def details(board: Board, name: _names.Name, width: int, height: int) -> RenderableType:
    """Return the picture of one name."""
    lines = _ls.lines(name)
    room = max(height - _AROUND, 1)
    more = [f"  and {len(lines) - room} lines more: aiolocks show"] if len(lines) > room else []
    texts = [Text(line, no_wrap=True, overflow="ellipsis") for line in (*lines[:room], *more)]
    texts[0].stylize("bold")
    return Group(_heading(board), *texts, Text(""), Text("Esc back  q quit", style="dim"))


def _heading(board: Board) -> Text:
    style = "" if board.known else "bold red"
    return Text.assemble(("aiolocks watch", "bold"), (f"  {board.heading()}", style), no_wrap=True, overflow="ellipsis")


def _help(board: Board, typing: bool, width: int) -> Text:
    if typing:
        return Text(f"filter: {board.filter}_", style="bold", no_wrap=True)
    filtered = f"  filter: {board.filter}" if board.filter else ""
    long = "↑↓ choose  Enter inspect  / filter  s sort  q quit" if width >= 60 else "/ filter  s sort  q quit"
    return Text(f"{long}  sorted by {board.sort}{filtered}", style="dim", no_wrap=True, overflow="ellipsis")


@final
class Live:
    """Draws a board until the user quits."""

    def __init__(self, watcher: Watcher, interval: float) -> None:
        self._watcher, self._board = watcher, watcher.board
        self._interval = interval
        self._console = Console(highlight=False, emoji=False, markup=False)
        self._chosen = 0
        self._base: bytes | None = None
        """Key of the chosen name, whose place in the list may change."""
        self._inspects = False
        self._typing = False
        self._rows: list[_names.Name] = []
        self._quits = asyncio.Event()
        self._keyed = asyncio.Event()

    async def run(self) -> None:
        """Draw and refresh until q or Ctrl-C."""
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
        loop.add_reader(fd, self._read, fd)
        refreshing = asyncio.ensure_future(self._refresh())
        try:
            with RichLive(console=self._console, screen=True, auto_refresh=False) as screen:
                while not self._quits.is_set():
                    self._keyed.clear()
                    screen.update(self._picture(), refresh=True)
                    key = asyncio.ensure_future(self._keyed.wait())
                    await asyncio.wait({key, refreshing}, return_when=asyncio.FIRST_COMPLETED)
                    key.cancel()
                    if refreshing.done():
                        refreshing.result()  # raises: it ends only by an error
        finally:
            refreshing.cancel()
            loop.remove_reader(fd)
            with suppress(termios.error):  # the terminal may have hung up
                termios.tcsetattr(fd, termios.TCSADRAIN, before)

    async def _refresh(self) -> None:
        while True:
            visible = self._rows[max(self._chosen - self._console.height, 0) : self._chosen + self._console.height]
            inspected = self._rows[self._chosen] if self._inspects and self._rows else None
            await self._watcher.refresh(visible, inspected)
            self._keyed.set()  # draw
            await asyncio.sleep(self._interval)

    def _picture(self) -> RenderableType:
        self._rows = self._board.listed()
        places = {name.base: at for at, name in enumerate(self._rows)}
        self._chosen = places.get(self._base or b"", min(self._chosen, max(len(self._rows) - 1, 0)))
        width, height = self._console.size
        if self._inspects and self._rows:
            return details(self._board, self._rows[self._chosen], width, height)
        return table(self._board, self._rows, width, height, self._chosen, self._typing)

    def _read(self, fd: int) -> None:
        try:
            typed = os.read(fd, 1024)
        except OSError:
            typed = b""
        if not typed:  # the terminal has hung up, and is always readable
            self._quits.set()
            self._keyed.set()
            asyncio.get_running_loop().remove_reader(fd)
        for key in _TYPED.findall(typed.decode(errors="ignore")):
            self.key(key)

    def key(self, typed: str) -> None:
        """Handle one key."""
        self._keyed.set()
        action = _KEYS.get(typed, typed)
        if self._typing:
            if action in ("open", "back"):
                self._typing = False
                self._board.filter = "" if action == "back" else self._board.filter
            elif typed in ("\x7f", "\b"):
                self._board.filter = self._board.filter[:-1]
            elif typed.isprintable():
                self._board.filter += typed
        elif action == "q":
            self._quits.set()
        elif action == "/":
            self._typing, self._inspects, self._board.filter = True, False, ""
        elif action == "s":
            self._board.sort = SORTS[(SORTS.index(self._board.sort) + 1) % len(SORTS)]
        elif action == "back":
            self._inspects = False
        elif action == "open":
            self._inspects = bool(self._rows)
        elif action in ("up", "down"):
            self._chosen = max(min(self._chosen + (1 if action == "down" else -1), len(self._rows) - 1), 0)
        self._base = self._rows[self._chosen].base if self._rows else None
