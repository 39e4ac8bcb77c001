"""The options that every primitive shares, checked once, before any I/O."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final, Literal, TypedDict

SHORTEST_TTL = 0.1
"""Seconds. Below, the network's own delays would eat the lease."""


class RedlockOptions(TypedDict, total=False):
    """The options of a `Redlock`, for type checkers: ``**options: Unpack[RedlockOptions]``. See `Redlock`."""

    ttl: float
    acquire_timeout: float | None
    on_lost: Literal["cancel", "flag"]
    renew: bool
    max_hold: float | None
    watchdog: Literal["task", "thread"]
    max_stall: float
    prefix: str


class LeaseOptions(RedlockOptions, total=False):
    """The options of every other primitive that has leases, for type checkers. See `Lock`."""

    replicas: int


class Unset(Enum):
    """The type of `UNSET`, which tells "not given" from None."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET

_ELSEWHERE = {
    "timeout": "ttl= for how long a lease lasts, or acquire_timeout= for how long to wait",
    "blocking_timeout": "acquire_timeout=",
    "blocking": "try_acquire() to ask once without waiting",
    "expire": "ttl=",
    "lock_timeout": "ttl=",
    "limit": "a Semaphore, which has one",
    "permits": "a Semaphore, with permits= in acquire() or hold()",
}
QUORUM_OF_PERMITS = "several servers would hand out too much: with 3 of them and 2 permits, AB, BC and AC all win"
_IMPOSSIBLE = {"limit": QUORUM_OF_PERMITS, "permits": QUORUM_OF_PERMITS, "replicas": "its servers are independent"}
_NEEDLESS = {
    "sleep": "waiters are woken, they do not poll",
    "thread_local": "an acquisition's state is in its Lease",
    "lock_class": "each primitive is a class of its own",
    "raise_on_release_error": "a release that could not be confirmed is a warning, a lost lease a LeaseLostError",
}
_IN_CALLS = {"blocking_timeout": "timeout=", "acquire_timeout": "timeout=", "blocking": "try_acquire()"}


def reject_unknown(where: str, names: Mapping[str, object]) -> None:
    """Raise the TypeError that says what to use instead of the first of *names*, if there is any."""
    for name in names:
        if where == "Redlock" and name in _IMPOSSIBLE:
            raise TypeError(f"{where} has no {name!r}: {_IMPOSSIBLE[name]}")
        if name in _ELSEWHERE:
            raise TypeError(f"{where} has no {name!r}: use {_ELSEWHERE[name]}")
        if name in _NEEDLESS:
            raise TypeError(f"{where} has no {name!r}, and needs none: {_NEEDLESS[name]}")
        raise TypeError(f"{where} has no {name!r}; its options are {', '.join(_names())}")


def reject_in_call(where: str, names: Mapping[str, object]) -> None:
    """The same for a call that waits."""
    for name in names:
        if name in _IN_CALLS:
            raise TypeError(f"{where} has no {name!r}: use {_IN_CALLS[name]}")
        if name in _names():
            raise TypeError(f"{where} has no {name!r}: it belongs to the constructor")
        raise TypeError(f"{where} got an unexpected keyword argument {name!r}")


def reject_in_attempt(where: str, names: Mapping[str, object]) -> None:
    """The same for a call that does not wait."""
    for name in names:
        if name == "timeout" or name in _IN_CALLS:
            raise TypeError(f"{where} has no {name!r}, as it never waits: use acquire(timeout=...) to wait")
    reject_in_call(where, names)


def _names() -> list[str]:
    """Return what every constructor takes beside what it is for."""
    return [*(option.name for option in fields(Options) if option.init), "prefix"]


@dataclass(frozen=True, slots=True)
class Options:
    """How a lease is asked for, kept and watched. Units are seconds; `acquire_timeout` None waits for ever."""

    ttl: float = 30.0
    acquire_timeout: float | None = None
    on_lost: Literal["cancel", "flag"] = "cancel"
    renew: bool = True
    max_hold: float | None = None
    watchdog: Literal["task", "thread"] = "task"
    max_stall: float = 60.0
    replicas: int = 0

    renewed_in_loop: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "renewed_in_loop", self.renew and self.watchdog == "task")
        check_ttl(self.ttl)
        check_timeout("acquire_timeout", self.acquire_timeout)
        if self.on_lost not in ("cancel", "flag"):
            raise ValueError(f'on_lost must be "cancel" or "flag", not {self.on_lost!r}')
        if not isinstance(self.renew, bool):
            raise TypeError(f"renew must be True or False, not {self.renew!r}")
        if self.max_hold is not None and check_seconds("max_hold", self.max_hold) <= 0:
            raise ValueError(f"max_hold must be > 0 seconds or None, not {self.max_hold!r}")
        if self.watchdog not in ("task", "thread"):
            raise ValueError(f'watchdog must be "task" or "thread", not {self.watchdog!r}')
        if check_seconds("max_stall", self.max_stall) <= 0:
            raise ValueError(f"max_stall must be > 0 seconds, not {self.max_stall!r}")
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int):
            raise TypeError(f"replicas must be an int, not {self.replicas!r}")
        if self.replicas < 0:
            raise ValueError(f"replicas must be >= 0, not {self.replicas!r}")


def check_ttl(ttl: float | None) -> None:
    """Raise TypeError or ValueError unless *ttl* is a lease's length in seconds."""
    if ttl is None:
        raise TypeError("ttl must be a number of seconds, not None: a lease without an end outlives its dead holder")
    if check_seconds("ttl", ttl) < SHORTEST_TTL:
        raise ValueError(f"ttl must be >= {SHORTEST_TTL} seconds, not {ttl!r}")
    if ttl > 10**9:
        raise ValueError(f"ttl must be <= 1e9 seconds, not {ttl!r}")


def check_timeout(what: str, timeout: float | None) -> None:
    """Raise TypeError or ValueError unless *timeout* is None or a number of seconds >= 0."""
    if timeout is not None and check_seconds(what, timeout) < 0:
        raise ValueError(f"{what} must be >= 0 seconds, or None to wait for ever, not {timeout!r}")


def check_permits(permits: int) -> None:
    """Raise TypeError or ValueError unless *permits* is a whole number >= 1."""
    if isinstance(permits, bool) or not isinstance(permits, int):
        raise TypeError(f"permits must be an int, not {permits!r}")
    if not 1 <= permits <= 10**9:
        raise ValueError(f"permits must be between 1 and 1,000,000,000, not {permits!r}")


def check_seconds(what: str, value: float) -> float:
    """Return *value* if it is a finite number, else raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite, not {value!r}")
    return value
