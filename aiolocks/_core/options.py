"""The options that every primitive shares, checked once, before any I/O."""

import logging
import math
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypedDict

log = logging.getLogger("aiolocks")

_warned_of_milliseconds = False

MIN_TTL = 0.1
"""Minimum TTL in seconds. With less, the network's own delays would use up the lease."""

MAX_NOTE = 200
"""Maximum number of characters of a note."""

Duration = float | timedelta
"""A length of time as callers give it: a number of seconds, or a timedelta. Only this file makes a float of it."""

Replicas = int | Literal["majority", "all"]
"""Number of replicas that must have a lease. A majority of R connected replicas and their primary is the primary and
(1 + R) // 2 replicas."""


class RedlockOptions(TypedDict, total=False):
    """The options of a `Redlock`, for type checkers: ``**options: Unpack[RedlockOptions]``. See `Redlock`."""

    ttl: Duration
    acquire_timeout: Duration | None
    on_lost: Literal["cancel", "flag"]
    renew: bool
    max_hold: Duration | None
    watchdog: Literal["task", "thread"]
    max_stall: Duration
    wait_release: bool
    min_uptime: Duration
    min_hold: Duration
    note: str | None
    prefix: str


class LeaseOptions(RedlockOptions, total=False):
    """The options of every other primitive that has leases, for type checkers. See `Lock`."""

    replicas: Replicas
    max_waiting: int | None


class TrackedOptions(LeaseOptions, total=False):
    """The options of the primitives whose leases can be tracked, for type checkers. See `Lock`."""

    track: bool


class Unset(Enum):
    """The type of `UNSET`, which tells "not given" from None."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True, init=False)
class Options:
    """How to ask for a lease, renew it and watch it. Durations are seconds as floats.

    The attributes of the second list follow from the others.
    """

    ttl: float
    acquire_timeout: float | None
    on_lost: Literal["cancel", "flag"]
    renew: bool
    max_hold: float | None
    watchdog: Literal["task", "thread"]
    max_stall: float
    replicas: Replicas
    wait_release: bool
    min_uptime: float
    min_hold: float
    track: bool
    max_waiting: int | None
    note: str | None

    renewed_in_loop: bool = field(init=False)
    needed_uptime: int = field(init=False)
    """Minimum uptime that the server must report, in seconds. 0 means that it is not asked."""
    min_hold_ms: int = field(init=False)
    extends: bool = field(init=False)
    """Whether an option adds to each request; see `Extension`."""

    def __init__(
        self, ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel", renew: bool = True, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, replicas: Replicas = 0,
        wait_release: bool = True, min_uptime: Duration = 0.0, min_hold: Duration = 0.0, track: bool = False,
        max_waiting: int | None = None, note: str | None = None,
    ) -> None:  # fmt: skip
        """Check and convert the caller's options.

        Raises:
            TypeError, ValueError: The text names the option and the mistake.
        """
        if callable(on_lost):
            raise TypeError(
                'on_lost must be "cancel" or "flag", not a function: `await lease.wait_lost()` returns when a lease is '
                "over, and aiolocks.events.on_event(function) calls a function"
            )
        if on_lost not in ("cancel", "flag"):
            raise ValueError(f'on_lost must be "cancel" or "flag", not {on_lost!r}')
        for name, flag in (("renew", renew), ("wait_release", wait_release), ("track", track)):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {flag!r}")
        if watchdog not in ("task", "thread"):
            raise ValueError(f'watchdog must be "task" or "thread", not {watchdog!r}')
        if isinstance(replicas, str):
            if replicas not in ("majority", "all"):
                raise ValueError(f"replicas must be an int, 'majority' or 'all', not {replicas!r}")
        elif isinstance(replicas, bool) or not isinstance(replicas, int):
            raise TypeError(f"replicas must be an int, 'majority' or 'all', not {replicas!r}")
        elif replicas < 0:
            raise ValueError(f"replicas must be >= 0, not {replicas!r}")
        uptime, hold = check_within_reason("min_uptime", min_uptime), check_within_reason("min_hold", min_hold)
        values = {
            "ttl": check_ttl(ttl), "acquire_timeout": check_timeout("acquire_timeout", acquire_timeout),
            "max_hold": None if max_hold is None else _above_zero("max_hold", max_hold, " or None"),
            "max_stall": _above_zero("max_stall", max_stall), "min_uptime": uptime, "min_hold": hold,
            "on_lost": on_lost, "renew": renew, "watchdog": watchdog,
            "replicas": replicas if isinstance(replicas, str) else int(replicas),
            "wait_release": wait_release, "track": track, "max_waiting": check_max_waiting(max_waiting),
            "note": check_note(note),
            "renewed_in_loop": renew and watchdog == "task",
            # Redis takes the difference of two times, each cut to a second: up to one second less is true of it.
            "needed_uptime": math.ceil(uptime) + 1 if uptime else 0, "min_hold_ms": math.ceil(hold * 1000),
            "extends": bool(replicas or uptime or hold or max_waiting is not None or note),
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)  # a frozen class forbids the usual way


if TYPE_CHECKING:
    options_of = Options
else:
    _same_options = lru_cache(maxsize=256, typed=True)(Options)  # typed, as True equals 1 but is no number of seconds

    def options_of(*given):
        """Return `Options`, from a cache: web handlers make a lock per request, always with the same options."""
        try:
            return _same_options(*given)
        except TypeError:
            return Options(*given)  # one cannot be hashed, or is wrong: then this raises the same error


def check_ttl(ttl: Duration | None) -> float:
    if ttl is None:
        raise TypeError("ttl must be a number of seconds, not None: a lease without an end outlives its dead holder")
    seconds = check_seconds("ttl", ttl)
    if seconds < MIN_TTL:
        raise ValueError(f"ttl must be >= {MIN_TTL} seconds, not {ttl!r}")
    if seconds > 10**9:
        raise ValueError(f"ttl must be <= 1e9 seconds, not {ttl!r}")
    global _warned_of_milliseconds
    if seconds >= 3600 and isinstance(ttl, int) and ttl % 1000 == 0 and not _warned_of_milliseconds:
        _warned_of_milliseconds = True
        log.warning(
            "ttl=%d lasts %.1f hours, as ttl is in seconds; if milliseconds are meant, use ttl=%d",
            ttl, ttl / 3600, ttl // 1000,
        )  # fmt: skip
    return seconds


def check_timeout(what: str, timeout: Duration | None) -> float | None:
    if timeout is None:
        return None
    seconds = check_seconds(what, timeout)
    if seconds < 0:
        raise ValueError(f"{what} must be >= 0 seconds, or None to wait for ever, not {timeout!r}")
    return seconds


def check_within_reason(what: str, value: Duration) -> float:
    seconds = check_seconds(what, value)
    if not 0 <= seconds <= 10**9:
        raise ValueError(f"{what} must be between 0 and 1e9 seconds, not {value!r}")
    return seconds


def check_pause(value: Duration) -> float:
    seconds = check_seconds("seconds", value)
    if not 0.001 <= seconds <= 86400:
        raise ValueError(f"seconds must be between 0.001 and 86400 (a day), not {value!r}; resume() ends a pause")
    return seconds


def check_fencing_token(fencing_token: int) -> int:
    return _check_count("fencing_token", fencing_token, 2**53 - 1, "2**53")


def check_permits(permits: int, what: str = "permits") -> int:
    return _check_count(what, permits, 10**9, "1,000,000,000")


def check_max_waiting(max_waiting: int | None) -> int | None:
    if max_waiting is not None and (isinstance(max_waiting, bool) or not isinstance(max_waiting, int)):
        raise TypeError(f"max_waiting must be an int, or None for no bound, not {max_waiting!r}")
    if max_waiting is not None and not 0 <= max_waiting <= 10**9:
        raise ValueError(f"max_waiting must be between 0 and 1,000,000,000, or None for no bound, not {max_waiting!r}")
    return None if max_waiting is None else int(max_waiting)


def check_note(note: str | None, what: str = "note") -> str | None:
    """Return a text that other processes get to see, or raise TypeError or ValueError."""
    given: object = note
    if given is not None and not isinstance(given, str):
        raise TypeError(f"{what} must be a str or None, not {type(given).__name__}")
    if note is not None and len(note) > MAX_NOTE:
        raise ValueError(f"{what} must have at most {MAX_NOTE} characters, not {len(note)}")
    return note


def _check_count(what: str, value: int, largest: int, shown: str) -> int:
    """Return *value* as a plain int, as an IntEnum cannot be sent; raise TypeError or ValueError if it is no count."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if not 1 <= value <= largest:
        raise ValueError(f"{what} must be between 1 and {shown}, not {value!r}")
    return int(value)


def check_seconds(what: str, value: Duration) -> float:
    """Return *value* in seconds if it is a finite length of time, else raise TypeError or ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            raise ValueError(f"{what} is too large: no float can hold it") from None
        if math.isfinite(seconds):
            return seconds
        raise ValueError(f"{what} must be finite, not {value!r}")
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"{what} must be a number of seconds or a timedelta, not {value!r}")


def _above_zero(what: str, value: Duration, otherwise: str = "") -> float:
    seconds = check_seconds(what, value)
    if seconds <= 0:
        raise ValueError(f"{what} must be > 0 seconds{otherwise}, not {value!r}")
    return seconds
