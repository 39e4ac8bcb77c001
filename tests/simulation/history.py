"""What the simulated programs record, in virtual time; and who believes to hold what, at any instant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from aiolocks import Lease
from aiolocks.testing import Event

from .process import Process
from .world import World


@dataclass(slots=True)
class _Open:
    process: Process
    lease: Lease
    token: str
    fence: int
    name: str
    permits: int
    base: str


@final
class History:
    """Recorded as the programs see it, but for one thing: who was stopped when its lease ended is noted as having lost
    it by then, since its lease says so whenever anybody looks.

    Attributes:
        events: What was recorded.
        taken: Every token whose lease came to its caller.
        look: Called for a name whenever somebody who may hold it does something.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[Event] = []
        self.taken: set[str] = set()
        self.look: Callable[[str], None] = lambda base: None
        self._open: dict[str, _Open] = {}
        self._accepted: dict[str, int] = {}

    def now_ns(self) -> int:
        return round(self._world.now * 1e9)

    def acquired(self, process: Process, lease: Lease, permits: int, base: str, asked_ns: int) -> None:
        if not process.alive:
            return
        self._close_dead(base)
        token, fence = lease.token, lease.fencing_token
        self.taken.add(token)
        self._open[token] = _Open(process, lease, token, fence, lease.name, permits, base)
        self._add("acquired", process, token, fence, base, permits, asked_ns)
        if not lease.held:  # it may be over before its caller runs
            self._close_dead(base)
        self.look(base)

    def ended(self, process: Process, lease: Lease) -> None:
        """Note, before it is released, that *lease* is not used any more."""
        if process.alive and (found := self._open.get(lease.token)) is not None:
            self.look(found.base)
            self._close(found, "released" if lease.held else "lost")

    def crashed(self, process: Process) -> None:
        self._add("killed", process, "", 0, "", 1)
        for found in [found for found in self._open.values() if found.process is process]:
            del self._open[found.token]

    def limit(self, base: str, limit: int) -> None:
        self.events.append(Event(self.now_ns(), 0, "limit", name=base, permits=limit))

    def write(self, process: Process, lease: Lease, base: str) -> None:
        """Write to a resource that checks fencing tokens; whether the lease is held is not asked."""
        if not process.alive:
            return
        self.look(base)
        accepted = lease.fencing_token >= self._accepted.get(base, 0)
        if accepted:
            self._accepted[base] = lease.fencing_token
        self._world.meet("writes" if accepted else "stale writes", process.name)
        self._add("accepted" if accepted else "refused", process, lease.token, lease.fencing_token, base, 1)

    def believed(self, base: str) -> list[str]:
        """Return the tokens of those who believe to hold *base* just now, each by its own clock."""
        believed = []
        for found in self._open.values():
            if found.base == base:
                with found.process.acting():
                    if found.lease.held:
                        believed.append(found.token)
        return believed

    def close_dead(self) -> None:
        for base in {found.base: None for found in self._open.values()}:
            self._close_dead(base)

    def _close_dead(self, base: str) -> None:
        """Note as lost what its own lease says is not held."""
        believed = self.believed(base)
        for found in [found for found in self._open.values() if found.base == base and found.token not in believed]:
            self._close(found, "lost")

    def _close(self, found: _Open, event: str) -> None:
        del self._open[found.token]
        if event == "lost":
            self._world.meet("leases lost", found.process.name)
        self._add(event, found.process, found.token, found.fence, found.base, found.permits)

    def _add(
        self, event: str, process: Process, token: str, fence: int, name: str, permits: int, asked_ns: int | None = None
    ) -> None:
        self.events.append(Event(self.now_ns(), process.pid, event, token, fence, name, permits, asked_ns))
        if self._world.tracing:
            self._world.note(process.name, f"{event} {name} {token[:8]} {fence or ''}")
