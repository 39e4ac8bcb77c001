"""What simulated programs fight over: of one kind of primitive a name, several names, or a tree of paths."""

import random
from dataclasses import dataclass
from typing import Any, final

from redis.asyncio import Redis

import aiolocks
from aiolocks._core.keys import Keys
from tests.support.kinds import EVERY_KIND, complete, kinds_where

_CLASSES = {kind.name: kind.class_name for kind in EVERY_KIND}

_SHARES = complete(
    {"lock": 3, "semaphore": 2, "rlock": 1, "rwlock": 2, "multilock": 1, "hierarchy": 1, "redlock": 1}, kinds_where()
)

KINDS = tuple(kind for kind, share in _SHARES.items() for _ in range(share))
"""What a run draws from, as often as it is to draw each. Seeds that once failed count on this order."""

MARKED_KINDS = (*KINDS, "rate", "rate")  # from seed `MARKED` on

FIRST_KINDS = ("lock", "lock", "semaphore")
"""Those whose scripts the others share or grew from: enough where a defect in the engine is looked for."""

_LEVELS = ("", "/a", "/a/1", "/a/2", "/b")
_MEMBERS = ("", "-b", "-c", "-d")


@final
@dataclass(frozen=True, slots=True)
class Thing:
    """It is fought over. *limit*: a semaphore's permits; a rate's starts in *ttl*; a multilock's names; else 1."""

    kind: str
    name: str
    ttl: float
    limit: int

    @property
    def names(self) -> list[str]:
        if self.kind == "multilock":
            return [self.name + member for member in _MEMBERS[: self.limit]]
        return [self.name + level for level in _LEVELS] if self.kind == "hierarchy" else [self.name]

    @property
    def base(self) -> str:
        return self.bases[0]

    @property
    def bases(self) -> list[str]:
        """The key of the holders of each name."""
        path = self.kind == "hierarchy"
        return [Keys("aiolocks:", self.kind, name, path=path).base.decode() for name in self.names]

    @property
    def in_parts(self) -> bool:
        """Whoever waits may hold a part of it."""
        return self.kind in ("multilock", "hierarchy", "redlock")

    @classmethod
    def drawn(cls, rng: random.Random, kinds: tuple[str, ...], name: str, ttls: list[float]) -> "Thing":
        kind, ttl = rng.choice(kinds), rng.choice(ttls)
        limits = {"semaphore": [1, 2, 3, 5], "multilock": [2, 3, 4], "rate": [1, 2, 3, 5]}.get(kind)
        longest = 2.0 if kind == "rate" else ttl  # each waiter may have to wait for a window
        return cls(kind, name, min(ttl, longest), rng.choice(limits) if limits else 1)

    def make(self, clients: list[Redis], rng: random.Random, options: dict[str, Any], package: Any = aiolocks) -> Any:
        """Return a way to have the thing, or a part of it if there are several, in one version of the library."""
        name: Any = self.name
        if self.kind == "multilock":
            name = rng.sample(self.names, rng.randint(1, self.limit))
        elif self.kind == "hierarchy":
            name = rng.choice(self.names)
        made = self._made(clients, name, options, package)
        if self.kind == "rwlock":
            return rng.choices([made.read, made.write, made.upgradeable], [5, 3, 2])[0]
        return rng.choice([made.read, made.write]) if self.kind == "hierarchy" else made

    def eval(self, clients: list[Redis], ttl: float) -> list[Any]:
        """Return ways to have all of it, to be tried one after the other."""
        levels = ("/a/1", "") if self.kind == "hierarchy" else ("",)
        names = [self.names] if self.kind == "multilock" else [self.name + level for level in levels]
        made = [self._made(clients, name, {"ttl": ttl}, aiolocks) for name in names]
        return [one.write if self.kind in ("rwlock", "hierarchy") else one for one in made]

    def _made(self, clients: list[Redis], name: Any, options: dict[str, Any], package: Any) -> Any:
        """Return the primitive; all *clients* vote on a redlock."""
        limit = [options.pop("limit", self.limit)] if self.kind in ("semaphore", "rate") else []
        return getattr(package, _CLASSES[self.kind])(
            clients if self.kind == "redlock" else clients[0], name, *limit, **options
        )

    def written_under(self, base: str, rng: random.Random) -> str:
        """Return a resource that whoever holds *base* alone may write to: of a path also one below it."""
        if self.kind != "hierarchy":
            return base
        return rng.choice([other for other in self.bases if other == base or other.startswith(base + "/")])
