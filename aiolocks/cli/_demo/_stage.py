"""Plays chapters: announces them, waits for their events, and shows the events."""

import asyncio
import textwrap
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import final

from ..._primitives.lock import Lock
from .._connect import Server, delete_keys
from .._screen import WIDTH, Line, Moving, Screen
from ._crew import HOST, Crew
from ._events import QUEUED, Event, Log
from ._timeline import Scale, depth_row, picture

LONGEST = 18.0
"""Seconds until the last chapter ends, even after errors. Two more are for verdicts and cleanup."""

_SPARE = 4.0
"""Seconds by which a chapter can exceed its normal time."""

_POLL_INTERVAL = 0.01
_FRAME_INTERVAL = 0.1
"""Intervals in seconds between polls of the queue, and between frames of a moving picture."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """A scene: its workers, their actions, and its normal duration."""

    title: str
    text: str
    key: str
    """The name of its lock or semaphore, after the name of the run."""
    cast: tuple[str, ...]
    seconds: float
    play: Callable[["Stage", str], Awaitable[None]]
    describe: Callable[[Sequence[Event], int], list[Line]]
    """Function that describes the picture in words, from the records and their start."""
    depth: bool = False


@final
class Stage:
    """One run of the demo."""

    def __init__(self, screen: Screen, log: Log, crew: Crew, server: Server, run: str, began: float) -> None:
        self.log = log
        self.crew = crew
        self.server = server
        self._screen = screen
        self.late = False
        """Whether an event came too late."""
        self._run = run
        self._number = 0
        self._last_call = began + LONGEST
        self._curtain = self._last_call

    def name(self, chapter: Chapter) -> str:
        return f"{self._run}-{chapter.key}"

    async def play(self, chapter: Chapter) -> None:
        """Play *chapter*, then show its picture and description."""
        self._number += 1
        head: Line = [(f"{self._number}  {chapter.title}", "bold cyan")]
        text = textwrap.wrap(chapter.text, WIDTH - 6)
        self._screen.write([], head, *([(f"   {line}", "")] for line in text), [])
        self._curtain = min(time.monotonic() + chapter.seconds + _SPARE, self._last_call)
        name = self.name(chapter)
        start = time.monotonic_ns()
        with self._screen.moving() as moving:
            drawing = asyncio.create_task(self._draw(moving, chapter, start))
            try:
                await chapter.play(self, name)
            finally:
                drawing.cancel()
                await asyncio.wait([drawing])
        events = self.log.in_order(name)
        end = events[-1].at if events else start
        self._screen.write(*self._picture(chapter, start, end, over=True))
        words = chapter.describe(events, start)
        if words:
            self._screen.write([], *words)

    async def until(self, worker: str, event: str, name: str, count: int = 1) -> None:
        """Wait for the *count*-th such record until the chapter must end. If it is missing, a verdict fails."""
        if not await self.log.until(worker, event, name, count, self._curtain - time.monotonic()):
            self.late = True

    async def until_queued(self, worker: str, lock: Lock, place: int) -> None:
        """Wait until the server has *place* waiters, of which *worker* is the last, and record that."""
        while time.monotonic() < self._curtain:
            if (await lock.statistics()).waiting == place:
                self.log.add(Event.now(worker, QUEUED, lock.name, note=f"seen by {HOST}"))
                return
            await asyncio.sleep(_POLL_INTERVAL)
        self.late = True

    async def tidy(self, chapters: Sequence[Chapter]) -> None:
        """Delete the remaining keys of this run."""
        for chapter in chapters:
            await delete_keys(self.server.locks.client, self.name(chapter))

    async def _draw(self, moving: Moving, chapter: Chapter, start: int) -> None:
        while True:
            moving.draw(lambda: self._picture(chapter, start, time.monotonic_ns(), over=False))
            await asyncio.sleep(_FRAME_INTERVAL)

    def _picture(self, chapter: Chapter, start: int, now: int, *, over: bool) -> list[Line]:
        events = [event for event in self.log.in_order(self.name(chapter)) if event.at <= now]
        scale = Scale.of(start, now, 0.0 if over else chapter.seconds)
        lines = picture(events, chapter.cast, scale, self._screen.glyphs)
        if chapter.depth:
            lines.insert(-1, depth_row(events, scale))
        return lines
