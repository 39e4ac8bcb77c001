"""What the simulated programs record, in virtual time; and who believes to hold what, at any instant."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from aiolocks import Lease
from aiolocks._core.modes import EXCLUSIVE, SHARED, UPGRADE
from aiolocks._engine.lease import state_of
from aiolocks.testing import HistoryEvent

from .modes import in_modes
from .process import Process
from .things import Thing
from .world import World


@final
@dataclass(frozen=True, slots=True)
class Part:
    """What a lease holds of one name; *permits*: or the mode."""

    base: str
    token: str
    fence: int
    permits: int

    @property
    def alone(self) -> bool:
        """Nobody else can hold the name at the same time."""
        if in_modes(self.base):
            return self.permits in (EXCLUSIVE, UPGRADE)
        return not self.base.startswith("aiolocks:semaphore:")


def parts_of(lease: Lease) -> list[Part]:
    """Return what *lease* holds, name by name; a majority of servers is one."""
    state = state_of(lease)
    found: dict[str, Part] = {}
    each: Any
    for each in state.request.parts or [state]:
        base = each.grantor.keys.base.decode()
        request = each.request
        found.setdefault(base, Part(base, request.token.decode(), each.fence, request.terms.permits))
    return list(found.values())


@dataclass(slots=True)
class _Open:
    process: Process
    lease: Lease
    parts: list[Part]

    def of(self, base: str) -> Part | None:
        return next((part for part in self.parts if part.base == base), None)


@final
class History:
    """Recorded as the programs see it, but for one thing: who was stopped when its lease ended is noted as having lost
    it by then, since its lease says so whenever anybody looks.

    Attributes:
        look: Called for a name whenever somebody who may hold it does something.
        sane: Whether what is held is held, as the server loses nothing.
        free_since: Returns the true time from which a name has been free.
        started: Called when a caller begins what a rate limits, with the fencing token and the cost of its start.
        offers: The texts of leases that were handed off, and when the leases were asked for, by name.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[HistoryEvent] = []
        self.taken: set[str] = set()
        self.lost: set[str] = set()
        self.look: Callable[[str], None] = lambda base: None
        self.sane: Callable[[], bool] = lambda: False
        self.free_since: Callable[[str], float] = lambda base: float("inf")
        self.started: Callable[[Thing, int, int], None] = lambda *_: None
        self.offers: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._open: dict[str, _Open] = {}
        self._accepted: dict[str, int] = {}

    def now_ns(self) -> int:
        return round(self._world.now * 1e9)

    def acquired(self, process: Process, lease: Lease, asked_ns: int) -> None:
        if not process.alive:
            return
        parts = parts_of(lease)
        for part in parts:
            self._close_dead(part.base)
        self._begin(process, lease, parts, asked_ns)
        if not lease.held:  # it may be over before its caller runs
            self._close_dead(parts[0].base)
        for part in parts:
            self.look(part.base)

    def refused(self, process: Process, base: str, asked_ns: int) -> None:
        """C3: a caller goes away empty-handed only if the name was held at some time during its call."""
        free_since = self.free_since(base)
        if process.alive and self.sane() and free_since * 1e9 < asked_ns:
            self._world.violate(
                f"C3: {process.name} asked for {base} at {asked_ns / 1e9:.6f}, and did not get it; "
                f"it had been free since {free_since:.6f}"
            )

    def ended(self, process: Process, lease: Lease) -> None:
        """Note, before it is released, that *lease* is not used any more."""
        if process.alive and (found := self._open.get(lease.token)) is not None:
            for part in found.parts:
                self.look(part.base)
            self._close(found, "released" if lease.held else "lost")

    def downgraded(self, process: Process, lease: Lease) -> None:
        """Note, before it is asked for, that *lease* is shared from now on, under the same token."""
        if process.alive and (found := self._open.get(lease.token)) is not None:
            if not lease.held:
                self._close(found, "lost")
                return
            self._close(found, "released")
            self._begin(process, lease, [replace(part, permits=SHARED) for part in found.parts], None)

    def _begin(self, process: Process, lease: Lease, parts: list[Part], asked_ns: int | None) -> None:
        self._open[lease.token] = _Open(process, lease, parts)
        for part in parts:
            self.taken.add(part.token)
            self._add("acquired", process, part, asked_ns)

    def crashed(self, process: Process) -> None:
        self._add("killed", process, Part("", "", 0, 1))
        for token in [token for token, found in self._open.items() if found.process is process]:
            del self._open[token]

    def limit(self, base: str, limit: int) -> None:
        self.events.append(HistoryEvent(self.now_ns(), 0, "limit", name=base, permits=limit))

    def write(self, process: Process, lease: Lease, part: Part, resource: str) -> None:
        """Write to a resource that checks fencing tokens; whether the lease is held is not asked."""
        if not process.alive:
            return
        self.look(part.base)
        accepted = part.fence >= self._accepted.get(resource, 0)
        if accepted:
            self._accepted[resource] = part.fence
        elif part.alone and self.sane() and part.token in self.believed(part.base):
            self._world.violate(f"C2: {resource}: the fencing token of its holder is an old one: {part.fence}")
        self._world.meet("writes" if accepted else "stale writes", process.name)
        self._add("accepted" if accepted else "refused", process, replace(part, base=resource))

    def believed(self, base: str) -> dict[str, int]:
        """Return the tokens of those who believe to hold *base* just now, each by its own clock, with their permits."""
        believed: dict[str, int] = {}
        for found in self._open.values():
            part = found.of(base)
            if part is not None:
                with found.process.acting():
                    if found.lease.held:
                        believed[part.token] = part.permits
        return believed

    def close_dead(self) -> None:
        for base in {part.base: None for found in self._open.values() for part in found.parts}:
            self._close_dead(base)

    def _close_dead(self, base: str) -> None:
        """Note as lost what its own lease says is not held."""
        believed = self.believed(base)
        for found in list(self._open.values()):
            part = found.of(base)
            if part is not None and part.token not in believed:
                self._close(found, "lost")

    def _close(self, found: _Open, event: str) -> None:
        self._open = {token: other for token, other in self._open.items() if other is not found}
        if event == "lost":
            self._world.meet("leases lost", found.process.name)
            self.lost |= {part.token for part in found.parts}
        for part in found.parts:
            self._add(event, found.process, part)

    def _add(self, event: str, process: Process, part: Part, asked_ns: int | None = None) -> None:
        permits = part.permits if event not in ("accepted", "refused") else 1
        self.events.append(
            HistoryEvent(self.now_ns(), process.pid, event, part.token, part.fence, part.base, permits, asked_ns)
        )
        if self._world.tracing:
            self._world.note(process.name, f"{event} {part.base} {part.token[:8]} {part.fence or ''}")
