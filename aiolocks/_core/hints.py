"""Errors that show the right call for names and keywords of other libraries: `lock.extend` names `lease.renew`.

The tables are plain data: the names of redis-py and asyncio, and the most usual ones of other libraries. Every other
wrong name gets Python's own error. `hasattr`, `dir`, copies and mocks see no difference.

A wrong name is an attribute of the class, which raises the error. A `__getattr__` would cost each read of each other
attribute 20 ns more, and so an acquire and release 3 % of its instructions (CPython 3.11). What looks into classes
without reading attributes finds them: `inspect.getattr_static`, and `isinstance` with a runtime protocol.
"""

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from .kinds import KIND_OF_CLASS

F = TypeVar("F", bound=Callable[..., Any])

QUORUM_OF_PERMITS = "several servers would hand out too much: with 3 of them and 2 permits, AB, BC and AC all win"
"""Why a semaphore has one server."""

_ANY_CASE = str.maketrans("", "", "_")


def _plain(name: str) -> str:
    """Return *name* as the tables have it: `try_lock` and `tryLock` are the same."""
    return name.translate(_ANY_CASE).lower()


def _names(table: Mapping[str, str]) -> dict[str, str]:
    """Return *table* with one plain name in each key; a key of *table* lists several."""
    return {_plain(name): hint for names, hint in table.items() for name in names.split()}


def _spelled(table: Mapping[str, str]) -> dict[str, str]:
    """Return *table* with one attribute in each key, also as `camelCase`; a key of *table* lists several."""
    found = dict[str, str]()
    for names, hint in table.items():
        for name in names.split():
            first, *words = name.split("_")
            found[name] = found["".join([first, *map(str.capitalize, words)])] = hint
    return found


_OF_LEASE = {
    name: f"use that of the lease, which `async with` and acquire() give: lease.{name}"
    for name in [
        "check",
        "fencing_token",
        "fencing_tokens",
        "guard",
        "hand_off",
        "held",
        "lost",
        "remaining",
        "renew",
        "token",
        "wait_lost",
    ]
}

_LOCK = _spelled(_OF_LEASE) | _spelled({
    "extend reacquire refresh":
        "a lease is renewed until it is released; by hand: await lease.renew(60), of what acquire() returned",
    "owned is_held is_owned is_held_by_current_thread":
        "of what `async with` and acquire() give, lease.held says it; await lock.locked() says it of any holder",
    "owner locked_by": "await lock.holders() says who holds it",
    "force_release force_unlock reset": "await lock.revoke() takes it from its holders",
    "info": "use await lock.statistics(), or await lock.holders()",
    "is_locked": "use await lock.locked()",
    "expires_at ttl time_left":
        "of what `async with` and acquire() give, lease.remaining() says how many seconds are left",
    "try_lock acquire_nowait": "use await lock.try_acquire(): a lease, or None",
    "lock": "use `async with lock:`, or lease = await lock.acquire()",
    "unlock do_release": "use await lock.release(), or await lease.release()",
    "local": "use that of the lease, which `async with` and acquire() give: lease.token",
    "upgrade downgrade": "leases of RWLock.upgradeable have it: async with lease.upgrade(): ...",
    "close aclose": "there is nothing to close: it keeps no task or connection once nothing is held or awaited",
    "key resource": "use lock.name",
    "detach": "use text = await lease.hand_off(): another process uses lock.adopt(text), or lock.touch(text)",
    "heartbeat keep_alive":
        "a lease is renewed until it is released; between requests: await lock.touch(text), of await lease.hand_off()",
})  # fmt: skip

_SEMAPHORE = _LOCK | _spelled({
    "limit max_value total_tokens": "use (await semaphore.statistics()).limit, and await semaphore.resize(n)",
    "value available_tokens available_permits":
        "use `now = await semaphore.statistics()`, and then now.limit - now.permits",
    "borrowed_tokens": "use (await semaphore.statistics()).permits",
    "try_set_permits set_limit": "use await semaphore.resize(n)",
})  # fmt: skip

_OF_MODES = "acquire hold try_acquire adopt touch drop release locked statistics holders waiters revoke"

_RWLOCK = _spelled({
    "read_lock reader reader_lock": "use rw.read: `async with rw.read:`",
    "write_lock writer writer_lock": "use rw.write: `async with rw.write:`",
    "upgrade downgrade": "leases of rw.upgradeable have it: async with lease.upgrade(): ...",
    _OF_MODES: "rw.read, rw.write and rw.upgradeable have it: lease = await rw.read.acquire()",
})  # fmt: skip

_HIERARCHY = _spelled({_OF_MODES: "lock.read and lock.write have it: lease = await lock.read.acquire()",
                     "path": "use lock.name"})  # fmt: skip

_LEASE = _spelled({
    "extend reacquire refresh": "it is renewed until it is released; by hand, await lease.renew(60)",
    "owned is_held valid locked": "use lease.held",
    "expires_at ttl validity": "use lease.remaining(), the seconds that are left of it",
    "unlock close aclose": "use await lease.release()",
    "resource": "use lease.name",
    "key value id local": "use lease.name for what is held, lease.token for what proves it",
    "fence": "use lease.fencing_token",
    "owner": "it is held by this process; await lock.holders() says who holds a name",
    "acquire try_acquire hold": "its lock has it; a lease is what was acquired",
    "detach": "use text = await lease.hand_off(): another process uses lock.adopt(text), or lock.touch(text)",
    "heartbeat keep_alive": "it is renewed until it is released; between requests, await lock.touch(text)",
    "adopt touch drop": "its lock has it, for the text of lease.hand_off(): await lock.touch(text)",
    "statistics holders waiters revoke": "its lock has it: await lock.statistics(), await lock.holders()",
})  # fmt: skip

_MANAGER = _spelled({
    "rw_lock get_read_write_lock read_write_lock": "use locks.rwlock(name)",
    "get_lock acquire": "use locks.lock(name): `async with locks.lock(name):`",
    "is_locked locked": "use await locks.lock(name).locked()",
    "unlock release extend": "leases have it: await lease.release(), await lease.renew(60)",
    "redlock": "it has several clients: Redlock([redis_a, redis_b, redis_c], name)",
    "close": "use await locks.aclose()",
    "elector leader_election leader": "use locks.election(name): await locks.election(name).run(lead)",
    "limiter rate_limit throttle rate": "use locks.rate_limiter(name, 100, per=60)",
    "single_flight idempotent cached": "use await locks.once(name, keep=3600).run(function)",
    "redis": "use locks.client",
    "holders waiters revoke statistics": "its locks have it: await locks.lock(name).statistics()",
})  # fmt: skip

_VERSIONED = _spelled({
    "get": "use value, version = await versioned.read()",
    "set put": "use await versioned.write(value, version)",
    "transaction watch": "use await versioned.update(function)",
    "name": "use versioned.key",
    "acquire hold lock release": "nothing is locked: use await versioned.update(function), or a Lock",
})  # fmt: skip

_ELECTION = _spelled({
    "acquire try_acquire hold lock start stand elect campaign": "use await election.run(lead), of a coroutine function",
    "release unlock stop step_down abdicate": "use await election.resign(); to stand no more, cancel the task of run()",
    "holders statistics locked owner get_leader": "await election.leader() says who leads",
    "is_leading leading am_i_leader held": "use election.is_leader",
    "fencing_token epoch": "use election.term, or lease.fencing_token of the lease that `lead` gets",
    "watch observe": "use `async for leader in election.changes():`",
})  # fmt: skip

_RATE = _spelled({
    "hold lock wait join": "use `async with limiter:`, or await limiter.acquire()",
    "release unlock reset": "there is nothing to release: a start counts for `per` seconds",
    "locked has_capacity can_acquire": "use await limiter.try_acquire(): True or False",
    "consume hit test take try_consume": "use await limiter.acquire(cost=1), or await limiter.try_acquire(cost=1)",
    "remaining available value get_window_stats":
        "use `now = await limiter.statistics()`, and then now.limit - now.permits",
    "holders waiters": "use await limiter.statistics(): it has no holders",
    "resize": "make a RateLimiter with the new limit: the limit that was declared last is in force",
    "limit max_rate rate": "use (await limiter.statistics()).limit",
})  # fmt: skip

_ONCE = _spelled({
    "acquire try_acquire hold lock do call get execute": "use await once.run(function), of a coroutine function",
    "release unlock delete invalidate clear reset": "use await once.forget(); await once.revoke() stops the runner",
    "locked statistics owner": "await once.holders() says who runs",
    "value result": "use await once.outcome(): its value, when it was made, and its fencing token; or None",
    "set put": "the result of the function that run() calls is kept",
})  # fmt: skip

_TABLES = {
    "Election": _ELECTION,
    "Once": _ONCE, "RateLimiter": _RATE,
    "Semaphore": _SEMAPHORE, "RWLock": _RWLOCK, "HierarchicalLock": _HIERARCHY, "Lease": _LEASE,
    "LockManager": _MANAGER, "Versioned": _VERSIONED,
}  # fmt: skip
"""By class; all other classes can be acquired, and have `_LOCK`."""

_PACKAGE = _names({
    "ReadWriteLock": "use RWLock",
    "ReentrantLock": "use RLock",
    "RedisLock": "use Lock; in place of redis-py's own, aiolocks.compat.RedisLock",
    "BoundedSemaphore CapacityLimiter": "use Semaphore",
    "Elector LeaderElection Leader": "use Election",
    "RateLimit Throttle Throttler TokenBucket LeakyBucket Limiter AsyncLimiter": "use RateLimiter",
    "SingleFlight OncePer Idempotent IdempotencyKey": "use Once; as a decorator, aiolocks.once",
    "LockNotOwnedError LockLost LeaseLost": "use LeaseLostError",
    "LockAcquireError LockTimeout WouldBlock": "use AcquireTimeoutError; try_acquire() returns None",
    "synchronize locked": "use with_lock",
    "SyncLock ThreadLock ThreadingLock": "for threads and code without await, import aiolocks.sync",
    **{
        module: f"import aiolocks.{module}"
        for module in ["aiohttp", "compat", "events", "fastapi", "otel", "sync", "testing"]
    },
})  # fmt: skip


def missing_from_package(name: str) -> NoReturn:
    """Raise the AttributeError of a *name* that the package lacks."""
    hint = None if name.startswith("_") else _PACKAGE.get(_plain(name))
    raise AttributeError(
        f"module 'aiolocks' has no attribute {name!r}{'' if hint is None else ': ' + hint}",
        name=name, obj=sys.modules["aiolocks"],
    )  # fmt: skip


class _Wrong:
    """An attribute for a usual wrong name: reading it raises AttributeError with the hint."""

    def __init__(self, name: str, hint: str) -> None:
        self.name, self.hint = name, hint

    def __get__(self, thing: object, kind: type) -> NoReturn:
        owner = f"type object {kind.__name__!r}" if thing is None else f"{kind.__name__!r} object"
        raise AttributeError(
            f"{owner} has no attribute {self.name!r}: {self.hint}", name=self.name, obj=kind if thing is None else thing
        )


def _wrong_names(kind: type) -> set[str]:
    found = dict[str, object]()
    for base in reversed(kind.__mro__):
        found.update(vars(base))
    return {name for name, value in found.items() if isinstance(value, _Wrong)}


def _right_one(kind: type, name: str) -> object:
    """Return the attribute of another base of *kind*; None if there is none."""
    found = (vars(base).get(name) for base in kind.__mro__)
    return next((each for each in found if each is not None and not isinstance(each, _Wrong)), None)


class _Hinted(type):
    """The type of the classes with hints; their `dir` lists no wrong name."""

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__()} - _wrong_names(cls))


class NameHints(metaclass=_Hinted):
    """The base of the classes that users hold: an AttributeError for a usual wrong name shows the right one."""

    __slots__ = ()

    _hints: ClassVar[Mapping[str, str]] = {}
    """The wrong names that the class has, with their hints."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hints = _TABLES.get(cls.__name__, cls._hints or _LOCK)
        if hints is not cls._hints or len(cls.__bases__) > 1:  # most subclasses inherit those of a lock
            wrong, cls._hints = _wrong_names(cls), hints
            for name, hint in hints.items():
                if name in wrong:
                    setattr(cls, name, _right_one(cls, name) or _Wrong(name, hint))
                elif not hasattr(cls, name):
                    setattr(cls, name, _Wrong(name, hint))

    def __dir__(self) -> list[str]:
        own: dict[str, object] = getattr(self, "__dict__", {})
        return sorted({*super().__dir__()} - _wrong_names(type(self)) | own.keys())


def missing_attribute(thing: object, name: str) -> AttributeError:
    """Return the error for the attribute *name* that *thing* lacks, with a hint if there is one."""
    hint = _TABLES.get(type(thing).__name__, _LOCK).get(name)
    text = f"{type(thing).__name__!r} object has no attribute {name!r}"
    return AttributeError(text if hint is None else f"{text}: {hint}", name=name, obj=thing)


_TTL = "ttl= for how long a lease lasts, or acquire_timeout= for how long to wait"
_WAIT = "acquire_timeout= for how long to wait"
_RENEW = "renew=, which is True by default, and max_hold= for how long"

_OPTIONS = _names({
    "timeout": f"use {_TTL}",
    "expire lock_timeout auto_release_time lease_time": "use ttl=",
    "lock_at_most_for": "use ttl=, and max_hold= for how long it is renewed",
    "lock_at_least_for": "use min_hold=",
    "queue_limit max_queue max_queue_size max_waiters": "use max_waiting=",
    "description comment reason purpose": "use note=",
    "blocking_timeout wait_time retry_count retry_delay": f"use {_WAIT}",
    "blocking": "use try_acquire() to ask once without waiting",
    "auto_renewal auto_renew": f"use {_RENEW}",
    "namespace key_prefix": "use prefix=",
    "limit": "use a Semaphore, which has one",
    "permits": "use a Semaphore, with permits= in acquire() or hold()",
    "sleep": "it needs none: waiters are woken, they do not poll",
    "thread_local": "it needs none: an acquisition's state is in its Lease",
    "lock_class": "it needs none: each primitive is a class of its own",
    "raise_on_release_error":
        "it needs none: a release that could not be confirmed is a warning, a lost lease a LeaseLostError",
    "loop": "it needs none: it belongs to the loop that it is used in",
})  # fmt: skip
"""Keywords of other libraries' constructors."""

_OPTIONS_OF = {
    "Election": _names({
        "timeout acquire_timeout blocking_timeout":
            "it stands until it is elected; cancel the task of run(), or use asyncio.timeout()",
        "on_lost": "`lead` is always cancelled, and run() stands again",
        "renew auto_renewal auto_renew": "the lease of a leader is always renewed",
        "wait_release": "run() always waits for the release",
        "min_hold lock_at_least_for": "a leader leads until it resigns; for jobs, use a Lock",
        "max_waiting queue_limit": "every candidate stands until it is elected",
    }),
    "Once": _names({
        "on_lost": "the function is always cancelled",
        "renew auto_renewal auto_renew": "the lease of a runner is always renewed",
        "wait_release": "run() always waits for the release",
        "min_hold lock_at_least_for cache_ttl expire max_age": "use keep= for how long an outcome is kept",
        "serializer serialize encode": "use dumps= and loads=",
    }),
    "RateLimiter": _names({
        "period seconds interval window time_period": "use per=, in seconds",
        "max_rate rate max_calls calls capacity": "use limit=, and cost= in acquire()",
        "burst": "it lets through `limit` starts at once, and no more in any window of `per` seconds",
        "ttl on_lost renew max_hold wait_release min_hold note": "it holds nothing",
    }),
    "Semaphore": _names({"value max_value capacity permits": "use limit=, and permits= in acquire() or hold()"}),
    "Redlock": _names({
        "limit permits": QUORUM_OF_PERMITS,
        "replicas": "its servers are independent",
        "max_waiting queue_limit": "its callers wait in no queue",
    }),
}  # fmt: skip
"""By class, what differs from `_OPTIONS`."""

_CALLS = _names({
    "blocking_timeout acquire_timeout wait_time": "use timeout=",
    "blocking": "use try_acquire()",
    "queue_limit max_queue max_queue_size max_waiters": "use max_waiting=",
    "token": "it needs none: each lease gets a random token of its own",
    "sleep": "it needs none: waiters are woken, they do not poll",
})  # fmt: skip
"""Keywords of other libraries' `acquire`."""


def explains_misuse(function: F) -> F:
    """Make *function* raise a TypeError that shows the right call, where a call does not fit its signature.

    Its name, docstring and signature stay as they are. A correct call pays for one more frame: 0.1 or 0.2 µs.
    """

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            wrong = _misuse(function, inspect.signature(function), args, keywords)
            if wrong:
                raise TypeError(wrong) from None
            raise

    if inspect.iscoroutinefunction(function) or function.__name__ in ("acquire", "try_acquire"):  # see `MustAwait`
        mark_coroutine_function(call)
    return cast("F", call)


def mark_coroutine_function(call: Any) -> None:
    """Mark *call* as a coroutine function; `unittest.mock` looks at that."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(call)
    else:
        call._is_coroutine = vars(asyncio.coroutines)["_is_coroutine"]


def _misuse(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], keywords: Mapping[str, object]
) -> str:
    """Return the error text for a wrong call; an empty text if the call fits the signature."""
    try:
        signature.bind(*args, **keywords)
    except TypeError:
        pass
    else:
        return ""
    owner, _, verb = function.__qualname__.rpartition(".")
    unknown = next((name for name in keywords if name not in signature.parameters), None)
    if not owner:
        more, keep = ("a client, a name and keep=", ", keep=3600") if verb == "once" else ("a client and a name", "")
        return f'{verb} takes {more}: @{verb}(redis, "invoice:{{invoice_id}}"{keep})'
    if verb == "__init__":
        return _misuse_of_constructor(owner, [*signature.parameters][1:], unknown)
    where = getattr(args[0], "_called", owner) if args else owner  # "RWLock.read" for a mode
    return _misuse_of_call(where, verb, [*signature.parameters][1:], unknown)


def _misuse_of_constructor(owner: str, takes: list[str], unknown: str | None) -> str:
    kind = KIND_OF_CLASS[owner]
    if unknown is None or unknown in {"redis", "client", "clients", "masters", "key", "name", "names", "path"}:
        first, keywords = ("ttl", _TTL) if "ttl" in takes else ("acquire_timeout", _WAIT)
        needs = ", ".join(takes[: takes.index(first)])
        return f"{owner} takes {needs}, and then keywords: {kind.example}, with {keywords}"
    if unknown == "track" and kind.untracked:
        return f"{owner} has no 'track': {kind.untracked}"
    word = _plain(unknown)
    hint = _OPTIONS_OF.get(owner, {}).get(word) or _OPTIONS.get(word)
    return f"{owner} has no {unknown!r}" + (f": {hint}" if hint else f"; its options are {', '.join(takes[2:])}")


def _misuse_of_call(where: str, verb: str, takes: list[str], unknown: str | None) -> str:
    permits = "permits=3, " if "permits" in takes else ""
    if unknown is None:
        waits = "acquire" if verb == "try_acquire" else verb
        once = "" if verb == "revoke" else f", try_acquire({permits.rstrip(', ')}) asks once and never waits"
        return f"{where}.{verb}() takes keywords only: {waits}({permits}timeout=5) waits for at most 5 seconds{once}"
    word = _plain(unknown)
    if verb == "try_acquire" and (word == "timeout" or _CALLS.get(word) == "use timeout="):
        hint = "it never waits; use acquire(timeout=5) to wait"
    elif verb == "try_acquire" and word == _plain("max_waiting"):
        hint = "it never waits; acquire(max_waiting=20) waits unless so many wait already"
    elif "cost" in takes and word in ("n", "value", "count", "tokens", "permits", "weight"):
        hint = "use cost="
    elif permits and word in ("n", "value", "count", "tokens"):
        hint = "use permits="
    elif word == "permits":
        hint = "use a Semaphore, which has permits"
    else:
        listed = " and ".join(f"{name}=" for name in takes) or "no keyword"
        hint = _CALLS.get(word) or f"it takes {listed}; options such as ttl= belong to the constructor"
    return f"{where}.{verb}() has no {unknown!r}: {hint}"


def not_callable(called: str, keywords: Mapping[str, object]) -> TypeError:
    """Return the error for ``lock(timeout=5)``, where *called* is the class, or the class and a mode."""
    asked = "permits=3, timeout=5" if "permits" in keywords else "timeout=5"
    variable = called.lower()
    return TypeError(
        f"{called} objects are not callable: use `async with {variable}:`, or "
        f"`async with {variable}.hold({asked}):`, or `lease = await {variable}.acquire({asked})`"
    )


def held_by_mode(thing: object, *_: object) -> NoReturn:
    """Raise the error for ``async with rw:``, of a primitive that only its modes can hold, or of a loop."""
    kind = KIND_OF_CLASS[type(thing).__name__]
    if kind.loop:
        raise TypeError(f"{thing!r} cannot be held itself: use its run(), which calls your function under its lease")
    *modes, last = (f".{mode}" for mode in kind.modes)
    raise TypeError(f"{thing!r} cannot be held itself: enter its {', '.join(modes)} or {last}")


def entered_without_async(thing: object) -> NoReturn:
    """Raise the error for ``with lock:``; this is the `__enter__` of everything that `async with` enters."""
    raise TypeError(f"{thing!r} is entered by `async with`, not by `with`; threads use aiolocks.sync")
