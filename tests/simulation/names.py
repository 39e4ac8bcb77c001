"""What is known of one name: who holds it, as the keys say, and who waits for it, as the replies said.

The keys are read as the headers of the scripts have them: a string is a mutex's, a sorted set that of permits or modes.
"""

from dataclasses import dataclass, field
from typing import Any, final

from .modes import in_modes, together
from .process import Process


@final
@dataclass(slots=True)
class Waiter:
    """Who was told that it waits, when, and in which session; *reachable*: somebody has listened for it ever since."""

    ticket: int
    session: bytes
    heard_at: float
    life: float
    reachable: bool


@final
@dataclass(slots=True)
class Name:
    """One name, by its holder key.

    Attributes:
        holders: Fencing token and permits, or mode, of each token that holds it.
        tickets: The newest ticket that each token was told, in each session: a late copy of a request may name another.
        repeated: Tokens of which the network has sent a request twice.
        unknown_since: Since when something has been amiss with each of these tokens.
        granted: When each fencing token was granted last, by the server's clock without its steps back.
        kept: The fencing tokens whose releases came while their leases lasted.
        starts: Of a rate: when each began, from when it counts if its release is lost, its fencing token and its cost.
        taken_until: The true time at which the last lease ended or ends, unless it is renewed.
    """

    base: bytes
    holders: dict[bytes, tuple[int, int]] = field(default_factory=dict[bytes, tuple[int, int]])
    fences: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Of each grant that was seen: a lease that lapsed is back when the server's clock steps back, and no new one."""
    marks: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Of the holders that have one: R, C or O, as in `libraries/leases.lua`."""
    ends: dict[bytes, float] = field(default_factory=dict[bytes, float])
    waiting: dict[bytes, Waiter] = field(default_factory=dict[bytes, Waiter])
    newest: int = 0
    limit: int = 1
    tickets: dict[bytes, dict[bytes, int]] = field(default_factory=dict[bytes, dict[bytes, int]])
    repeated: set[bytes] = field(default_factory=set[bytes])
    withdrawn: set[bytes] = field(default_factory=set[bytes])
    unknown_since: dict[bytes, float] = field(default_factory=dict[bytes, float])
    askers: dict[bytes, Process] = field(default_factory=dict[bytes, Process])
    granted: dict[int, float] = field(default_factory=dict[int, float])
    kept: set[int] = field(default_factory=set[int])
    starts: list[tuple[float, float, int, int]] = field(default_factory=list[tuple[float, float, int, int]])
    taken_until: float = float("-inf")

    def forget(self) -> None:
        for known in (self.holders, self.ends, self.waiting, self.granted, self.starts):
            known.clear()

    def standing(self, database: Any) -> tuple[dict[bytes, tuple[int, int]], dict[bytes, float]]:
        holders: dict[bytes, tuple[int, int]] = {}
        ends: dict[bytes, float] = {}
        marks: dict[bytes, bytes] = {}
        item = database.get(self.base)
        if item is not None and isinstance(item.value, bytes):
            token, fence, *mark = item.value.split(b" ")
            holders[token], marks[token] = (int(fence), 1), b"".join(mark)
            ends[token] = item.expireat or float("inf")
        elif item is not None:
            meta = database.get(self.base + b":meta")
            known = {} if meta is None else meta.value
            now = database.time
            for token, score in list(item.value.items()):
                if score / 1000 > now:
                    permits, fence, *mark = known[token].split(b" ") if token in known else (b"1", b"0")
                    holders[token], marks[token] = (int(fence), int(permits)), b"".join(mark)
                    ends[token] = score / 1000
        self.marks = {token: mark for token, mark in marks.items() if mark}
        return holders, ends

    def admits(self, token: bytes, wanted: int) -> bool:
        """Return whether *token* could hold so many permits, or that mode, beside the present holders."""
        others = [(other.decode(), amount) for other, (_, amount) in self.holders.items() if other != token]
        if in_modes(self.base.decode()):
            return all(together((token.decode(), wanted), other) for other in others)
        return sum(permits for _, permits in others) + wanted <= self.limit

    def at_odds(self) -> list[tuple[int, int]]:
        """Return the modes that are held at one time and do not go together."""
        held = [(token.decode(), mode) for token, (_, mode) in self.holders.items()]
        pairs = [(one, other) for at, one in enumerate(held) for other in held[:at] if not together(one, other)]
        return [(one[1], other[1]) for one, other in pairs]

    def overtaken(self, token: bytes, known: dict[bytes, Waiter], asked_anew: int, now: float) -> list[bytes]:
        """Return who lives, can be reached, has waited since *known* and for longer than *token*, to be granted now."""
        ticket = min(self.tickets.get(token, {}).values(), default=asked_anew or float("inf"))
        return [
            other
            for other, waiter in self.waiting.items()
            if waiter.ticket < ticket
            and waiter.reachable
            and now - waiter.heard_at < waiter.life - 0.002
            and other in known
            and other != token
            and self.marks.get(other.rpartition(b"+")[0]) != b"R"  # W16: no upgrade grows from a revoked lease
        ]

    def limit_in_force(self, database: Any) -> int:
        meta = database.get(self.base + b":meta")
        return int(meta.value.get(b"limit", b"0")) if meta is not None else 0
