"""What simulated programs fight over: of one kind of primitive a name, several names, or a tree of paths."""

import random
from dataclasses import dataclass
from typing import Any, final

from redis.asyncio import Redis

from aiolocks import HierarchicalLock, Lock, MultiLock, Redlock, RLock, RWLock, Semaphore
from aiolocks._core.keys import Keys
from aiolocks._primitives.hierarchy import HierarchicalMode
from aiolocks._primitives.rwlock import RWLockMode
from tests.support.kinds import complete, kinds_where

Primitive = Lock | RLock | Semaphore | MultiLock | Redlock | RWLockMode | HierarchicalMode
"""Whatever can be acquired."""

_SHARES = complete(
    {"lock": 3, "semaphore": 2, "rlock": 1, "rwlock": 2, "multilock": 1, "hierarchy": 1, "redlock": 1}, kinds_where()
)

KINDS = tuple(kind for kind, share in _SHARES.items() for _ in range(share))
"""What a run draws from, as often as it is to draw each. Seeds that once failed count on this order."""

FIRST_KINDS = ("lock", "lock", "semaphore")
"""Those whose scripts the others share or grew from: enough where a defect in the engine is looked for."""

_LEVELS = ("", "/a", "/a/1", "/a/2", "/b")
_MEMBERS = ("", "-b", "-c", "-d")


@final
@dataclass(frozen=True, slots=True)
class Thing:
    """What is fought over. *limit*: a semaphore's permits; a multilock's names to choose from; else 1."""

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
        limits = {"semaphore": [1, 2, 3, 5], "multilock": [2, 3, 4]}.get(kind)
        return cls(kind, name, ttl, rng.choice(limits) if limits else 1)

    def make(self, clients: list[Redis], rng: random.Random, options: dict[str, Any]) -> Primitive:
        """Return a way to have the thing, or a part of it if there are several; all *clients* vote on a redlock."""
        client = clients[0]
        if self.kind == "lock":
            return Lock(client, self.name, **options)
        if self.kind == "redlock":
            return Redlock(clients, self.name, **options)
        if self.kind == "rlock":
            return RLock(client, self.name, **options)
        if self.kind == "rwlock":
            rw = RWLock(client, self.name, **options)
            return rng.choices([rw.read, rw.write, rw.upgradeable], [5, 3, 2])[0]
        if self.kind == "multilock":
            return MultiLock(client, rng.sample(self.names, rng.randint(1, self.limit)), **options)
        if self.kind == "hierarchy":
            path = HierarchicalLock(client, rng.choice(self.names), **options)
            return rng.choice([path.read, path.write])
        assert self.kind == "semaphore", f"no way to make a {self.kind}"
        limit = options.pop("limit", self.limit)
        return Semaphore(client, self.name, limit, **options)

    def eval(self, clients: list[Redis], ttl: float) -> list[Primitive]:
        """Return ways to have all of it, to be tried one after the other."""
        client = clients[0]
        if self.kind == "rwlock":
            return [RWLock(client, self.name, ttl=ttl).write]
        if self.kind == "multilock":
            return [MultiLock(client, self.names, ttl=ttl)]
        if self.kind == "hierarchy":
            return [HierarchicalLock(client, self.name + level, ttl=ttl).write for level in ("/a/1", "")]
        return [self.make(clients, random.Random(0), {"ttl": ttl})]

    def written_under(self, base: str, rng: random.Random) -> str:
        """Return a resource that whoever holds *base* alone may write to: of a path also one below it."""
        if self.kind != "hierarchy":
            return base
        return rng.choice([other for other in self.bases if other == base or other.startswith(base + "/")])
