"""The kinds of primitives: how each is called, whose scripts it uses, its capabilities, and its own words in errors.

A new kind starts with a row in `KINDS`. Every table of kinds in the library and the tests is made from it, and a test
fails by name where the new kind is missing. (The lock of `compat` is a lock with redis-py's keys, not a kind.)
"""

from typing import Final, NamedTuple

HELD: Final = "held by another holder"


class Kind(NamedTuple):
    """One kind of primitive.

    Attributes:
        name: The word for it in errors, events and on the command line.
        class_name: The class that users import from `aiolocks`.
        family: The scripts that grant, renew and release it. Kinds of one family store their holders in the same way.
        key_word: The word for it in keys. A kind whose name ends with the name of another kind has a word of its own:
            prefix "r" and kind "lock" would have the keys of kind "rlock".
        method: The method of a `LockManager` that makes it; empty if there is none.
        example: A call of its constructor, for errors.
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
        untracked: Why it lacks the option `track`, for errors; empty if it has the option.
        instead: What to do instead of waiting for a lease of the same task, for errors.
        busy: Why a caller has to wait, for errors.
        loop: Whether it is made of another primitive, as a loop around a lease is.
        without: If *loop*, the options of a `Lock` that it does not have.
    """

    name: str
    class_name: str
    family: str
    key_word: str
    method: str = ""
    example: str = ""
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
    untracked: str = ""
    instead: str = ""
    busy: str = HELD
    loop: bool = False
    without: tuple[str, ...] = ()

    @property
    def tracked(self) -> bool:
        """Whether it has the option `track`."""
        return not self.untracked

    def __str__(self) -> str:
        return self.name


_SHARED_KEY = "its keys change with each grant and release of others"

KINDS: Final = (
    Kind(
        "lock", "Lock", "lock", "lock", "lock", 'Lock(redis, "orders:42", ttl=10)',
        instead="an RLock may be taken again",
    ),
    Kind("rlock", "RLock", "lock", "reentrant", "rlock", 'RLock(redis, "orders:42", ttl=10)', reentrant=True),
    Kind(
        "multilock", "MultiLock", "lock", "multi", "multilock",
        'MultiLock(redis, ["account:1", "account:2"], ttl=10)', several=True,
    ),
    Kind(
        "redlock", "Redlock", "lock", "quorum", "", 'Redlock([redis_a, redis_b, redis_c], "orders:42", ttl=10)',
        quorum=True, queued=False, guards=False, handed_on=False, replicated=False,
        untracked="no single server knows whether a majority still has the lease",
    ),
    Kind(
        "semaphore", "Semaphore", "semaphore", "semaphore", "semaphore", 'Semaphore(redis, "scraper", 10, ttl=10)',
        permits=True, untracked=_SHARED_KEY, busy="too few permits are free, or it is paused",
    ),
    Kind(
        "rwlock", "RWLock", "modes", "readwrite", "rwlock", 'RWLock(redis, "catalogue", ttl=10)',
        modes=("read", "write", "upgradeable"), instead="pass its lease on, or begin with `upgradeable`",
    ),
    Kind(
        "hierarchy", "HierarchicalLock", "modes", "hierarchy", "hierarchical",
        'HierarchicalLock(redis, "shop/orders/42", ttl=10)',
        modes=("read", "write"), several=True, untracked=_SHARED_KEY,
    ),
    Kind(
        "once", "Once", "lock", "once", "once", 'Once(redis, "rates:eur", keep=3600, ttl=10)', loop=True,
        handed_on=False, without=("on_lost", "renew", "wait_release", "min_hold"),
    ),
    Kind(
        "rate", "RateLimiter", "semaphore", "rate", "rate_limiter", 'RateLimiter(redis, "api", 100, per=60)', loop=True,
        leased=False, permits=True, guards=False, handed_on=False, replicated=False,
        untracked="it has no lease", busy="no start is free, or it is paused",
        without=(
            "ttl", "on_lost", "renew", "max_hold", "watchdog", "max_stall", "replicas", "wait_release", "min_uptime",
            "min_hold", "note",
        ),
    ),
    Kind(
        "versioned", "Versioned", "versioned", "versioned", "versioned", 'Versioned(redis, "stock:42")',
        leased=False, queued=False, guards=False, handed_on=False, replicated=False, untracked="it has no lease",
    ),
    Kind(
        "election", "Election", "lock", "election", "election", 'Election(redis, "scheduler", ttl=10)', loop=True,
        handed_on=False, without=("acquire_timeout", "on_lost", "renew", "wait_release", "min_hold", "max_waiting"),
    ),
)  # fmt: skip

BUSY: Final = {kind.name: kind.busy for kind in KINDS}
KIND_OF_CLASS: Final = {kind.class_name: kind for kind in KINDS}
