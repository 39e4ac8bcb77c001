"""The names that `watch` has found. Those on the screen are up to date.

A refresh costs a few steps of SCAN, reads of the names on the screen, and reads of some other names in turn, so that
the order of all is about right. With 10,000 locks that is at most 1 % of the server's time.
"""

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, final

from redis.exceptions import ResponseError

from .. import _ls, _names
from .._nodes import Primaries

SORTS = ("waiting", "name", "held", "left")

_STEPS = 5
"""Number of SCAN steps per refresh, of a thousand keys each."""

_IN_TURN = 100
"""Number of names per refresh that are not on the screen."""


@final
class Board:
    """The names and totals. Call `begin` first, then `refresh` repeatedly."""

    def __init__(
        self, there: Primaries, prefix: str, pattern: str = "*", kind: str | None = None,
        sort: str = SORTS[0],
    ) -> None:  # fmt: skip
        self.sort = sort
        self.filter = ""
        self.wake_ups: float | None = None
        """Wake-ups per second between processes: the calls of PUBLISH. None if this user may not ask."""
        self._there, self._prefix = there, prefix
        self._wanted = pattern, kind
        self._names = dict[bytes, _names.Name]()
        self._scanning: AsyncGenerator[list[_names.Name]] | None = None
        self._turn: list[_names.Name] = []
        self._published: tuple[float, int] | None = None
        self._lost: tuple[datetime, str] | None = None
        """Since when the server has not answered, and why."""

    def connected(self, there: Primaries) -> None:
        """Use these servers from now on."""
        self._there = there
        self._scanning = self._published = self.wake_ups = None

    def lose(self, now: datetime, why: str) -> None:
        """Record that the server does not answer, until a refresh succeeds."""
        since = now if self._lost is None else self._lost[0]
        self._lost = since, why

    async def begin(self) -> None:
        """Find and read all names."""
        async for page in _names.scan(self._there, self._prefix, *self._wanted):
            self._names |= {name.base: name for name in page}
            await _names.read(self._there, page, self._prefix)
        self._remove_free()
        await self._rates()

    async def refresh(self, visible: Sequence[_names.Name], inspected: _names.Name | None = None) -> None:
        """Read the *visible* names and the waiters of the *inspected* one, and scan for new names."""
        new = await self._scan()
        self._turn = self._turn or list(self._names.values())
        turn, self._turn = self._turn[:_IN_TURN], self._turn[_IN_TURN:]
        due = {name.base: name for name in (*visible, *new, *turn)}
        await _names.read(self._there, list(due.values()), self._prefix)
        if inspected is not None:
            await _names.read(self._there, [inspected], self._prefix, waiters=True)
        self._remove_free()
        await self._rates()
        self._lost = None

    def listed(self) -> list[_names.Name]:
        """Return the names that pass the filter, in order."""
        wanted = self.filter.lower()
        order: dict[str, Callable[[_names.Name], Any]] = {
            "waiting": lambda name: (-name.waiting, -(name.seconds or 0)),
            "held": lambda name: -(name.seconds or 0),
            "left": lambda name: name.remaining if name.remaining is not None else float("inf"),
            "name": lambda name: name.name,
        }
        found = [name for name in self._names.values() if wanted in name.name.lower()]
        found.sort(key=lambda name: (name.name, name.kind))
        return sorted(found, key=order[self.sort])

    def _totals(self) -> tuple[int, int]:
        """Return how many names are held, and how many callers wait."""
        names = self._names.values()
        return sum(bool(name.held) for name in names), sum(name.waiting for name in names)

    @property
    def missing(self) -> Sequence[str]:
        """The addresses of the Cluster's primaries that do not answer. Their names are not shown."""
        return self._there.missing

    @property
    def known(self) -> bool:
        """Whether the last refresh succeeded."""
        return self._lost is None

    def heading(self) -> str:
        """Return the totals in one line, or since when they are unknown, and why."""
        if self._lost is not None:
            since, why = self._lost
            return f"nothing is known since {since:%H:%M:%S} UTC: {why}"
        held, waiting = self._totals()
        rate = "" if self.wake_ups is None else f", {self.wake_ups:,.0f} wake-ups/s"
        missing = f"; {', '.join(self.missing)} not asked: no answer" if self.missing else ""
        return f"{held:,} held, {waiting:,} waiting{rate}{missing}"

    def plain(self, most: int) -> list[str]:
        """Return the board as text, with up to *most* names."""
        if not self.known:
            return [self.heading()]
        rows = self.listed()
        more = [f"and {len(rows) - most:,} more"] if len(rows) > most else []
        return [self.heading(), _ls.HEAD, *(_ls.line(name) for name in rows[:most]), *more]

    def as_json(self) -> Mapping[str, Any]:
        """Return the board in the form for JSON."""
        held, waiting = self._totals()
        rate = None if self.wake_ups is None else round(self.wake_ups, 3)
        names = [_names.as_json(name) for name in self.listed()]
        since = None if self._lost is None else self._lost[0].isoformat()
        return {
            "held": held, "waiting": waiting, "wake_ups_per_second": rate, "unknown_since": since,
            "missing": list(self.missing), "names": names,
        }  # fmt: skip

    async def _scan(self) -> list[_names.Name]:
        """Scan the next keys and return new names."""
        if self._scanning is None:
            self._scanning = _names.scan(self._there, self._prefix, *self._wanted, steps=_STEPS)
        try:
            page = await anext(self._scanning)
        except StopAsyncIteration:
            self._scanning = None
            return []
        new = [name for name in page if name.base not in self._names]
        self._names |= {name.base: name for name in new}
        return new

    def _remove_free(self) -> None:
        """Remove the names that are not in use."""
        self._names = {base: name for base, name in self._names.items() if name.in_use}

    async def _rates(self) -> None:
        """Compute `wake_ups`: scripts call PUBLISH only for them."""
        try:
            found = [await node.info("commandstats") for node in self._there.nodes]
        except ResponseError:
            return
        calls = sum(
            int(stats[command]["calls"]) for stats in found for command in ("cmdstat_publish", "cmdstat_spublish")
            if command in stats
        )  # fmt: skip
        now = time.monotonic()
        if self._published is not None and now > self._published[0]:
            self.wake_ups = max(calls - self._published[1], 0) / (now - self._published[0])
        self._published = now, calls
