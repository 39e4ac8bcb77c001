"""The kinds of primitives: how each is called, whose scripts it uses, and its capabilities.

A new kind starts with a row in `KINDS`. Every table of kinds in the tests is made from it, and a test fails by name
where the new kind is missing. (The lock of `compat` is no kind of its own: it is a lock with redis-py's keys.)
"""

from dataclasses import dataclass
from typing import Final, final


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of primitive.

    Attributes:
        name: The word for it in errors, events and on the command line.
        class_name: The class that users import from `aiolocks`.
        family: The scripts that grant, renew and release it; kinds of one family keep their holders alike.
        key_word: The word for it in keys. A kind whose name ends with the name of another kind has a word of its own:
            prefix "r" and kind "lock" would have the keys of kind "rlock".
        method: The method of a `LockManager` that makes it; empty if there is none.
        modes: The attributes that can be acquired; empty if the object itself is acquired.
        leased: Whether it is held by leases, which are renewed and have fencing tokens.
        queued: Whether its waiters are served in the order in which they asked.
        reentrant: Whether its holder can acquire it again.
        permits: Whether one lease can have several permits.
        several: Whether one lease can be of several names.
        quorum: Whether several servers vote on it.
        guards: Whether its leases guard commands.
        handed_on: Whether its leases can be handed to another process.
        replicated: Whether it has the option `replicas`.
        tracked: Whether it has the option `track`.
    """

    name: str
    class_name: str
    family: str
    key_word: str
    method: str = ""
    modes: tuple[str, ...] = ()
    leased: bool = True
    queued: bool = True
    reentrant: bool = False
    permits: bool = False
    several: bool = False
    quorum: bool = False
    guards: bool = True
    handed_on: bool = True
    replicated: bool = True
    tracked: bool = True

    def __str__(self) -> str:
        return self.name


KINDS: Final = (
    Kind("lock", "Lock", "lock", "lock", "lock"),
    Kind("rlock", "RLock", "lock", "reentrant", "rlock", reentrant=True),
    Kind("multilock", "MultiLock", "lock", "multi", "multilock", several=True),
    Kind(
        "redlock", "Redlock", "lock", "quorum",
        quorum=True, queued=False, guards=False, handed_on=False, replicated=False, tracked=False,
    ),
    Kind("semaphore", "Semaphore", "semaphore", "semaphore", "semaphore", permits=True, tracked=False),
    Kind("rwlock", "RWLock", "modes", "readwrite", "rwlock", modes=("read", "write", "upgradeable")),
    Kind(
        "hierarchy", "HierarchicalLock", "modes", "hierarchy", "hierarchical",
        modes=("read", "write"), several=True, tracked=False,
    ),
    Kind(
        "versioned", "Versioned", "versioned", "versioned", "versioned",
        leased=False, queued=False, guards=False, handed_on=False, replicated=False, tracked=False,
    ),
)  # fmt: skip
