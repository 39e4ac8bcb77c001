"""Names with thousands of holders and waiters, written to Redis directly: the input of the slowest scripts."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.scripts.calls import Scripts, entry, token
from tests.scripts.states import now_us

_HOUR_MS = 3_600_000
_NOT_YET = 10**9
"""Lifetime in ms of lines and leases, so that none ends meanwhile."""
READ, WRITE = 3, 6

Prepare = Callable[[Scripts, int], None]
Act = Callable[[Scripts, int], object]


@dataclass(frozen=True, slots=True)
class Situation:
    """A state of a name, and the scripts that are run on it."""

    kind: str
    called: str
    prepare: Prepare
    acts: dict[str, Act]


def _name(number: int) -> str:
    return f"h{number}h"


def _hold(scripts: Scripts, count: int, share: int, *, ended: bool = False, counted: bool = True) -> None:
    """Add *count* holders with *share* permits, or in that mode; with *counted*, the number of permits is kept too."""
    now = now_us(scripts)
    end = now // 1000 + (-1 if ended else _HOUR_MS)
    fences = [now + number for number in range(count)]
    meta = {token(_name(number)): b"%d %d" % (share, fences[number]) for number in range(count)}
    more: dict[bytes, object] = {b"fence": fences[-1], b"ttl": _NOT_YET}
    if scripts.kind == "semaphore":
        more[b"weight"] = share
        if counted:
            more[b"used"] = f"{share * count} {count} {fences[-1]} {end} {now // 1000 + _NOT_YET}"
    elif counted:
        more[b"held"] = f"{fences[-1]} {end} {now // 1000 + _NOT_YET} {share}:{count} "
    scripts.redis.zadd(scripts.keys.base, {token(_name(number)): end for number in range(count)})
    scripts.redis.pexpire(scripts.keys.base, _NOT_YET)
    scripts.redis.hset(scripts.key("meta"), mapping={**meta, **more})


def _limit(scripts: Scripts, limit: int) -> None:
    if scripts.kind == "semaphore":
        scripts.redis.hset(scripts.key("meta"), "limit", limit)
    if scripts.kind != "lock":
        scripts.redis.hset(scripts.key("meta"), "line", 1)


def _wait(scripts: Scripts, count: int, share: int, *, session: str = "home") -> None:
    """Add *count* waiters of one session."""
    entries = {entry(f"w{number}w", permits=share): number + 1 for number in range(count)}
    scripts.redis.zadd(scripts.key("waiters", session=session), entries)
    scripts.redis.pexpire(scripts.key("waiters", session=session), _NOT_YET)
    scripts.redis.zadd(scripts.key("queue"), {session: 1})
    scripts.redis.pexpire(scripts.key("queue"), _NOT_YET)


def _sessions(scripts: Scripts, count: int, share: int, *, dead: bool) -> None:
    """Add *count* sessions that have no subscriber, each with one waiter, or with none if they are *dead*."""
    pipeline = scripts.redis.pipeline(transaction=False)
    pipeline.zadd(scripts.key("queue"), {f"s{number}": number + 1 for number in range(count)})
    pipeline.pexpire(scripts.key("queue"), _NOT_YET)
    for number in range(0 if dead else count):
        pipeline.zadd(scripts.key("waiters", session=f"s{number}"), {entry(f"w{number}w", permits=share): number + 1})
        pipeline.pexpire(scripts.key("waiters", session=f"s{number}"), _NOT_YET)
    pipeline.execute()


def _full(limit: Callable[[int], int], share: int, wanted: int, *, counted: bool = True) -> Prepare:
    def prepare(scripts: Scripts, size: int) -> None:
        _hold(scripts, size, share, counted=counted)
        _limit(scripts, limit(size))
        _wait(scripts, size, wanted)

    return prepare


def _ended(share: int, wanted: int, *, counted: bool = True) -> Prepare:
    def prepare(scripts: Scripts, size: int) -> None:
        _hold(scripts, size, share, ended=True, counted=counted)
        _limit(scripts, size)
        _wait(scripts, size, wanted)

    return prepare


def _held_before(sessions: bool, *, dead: bool = False, wanted: int = 1) -> Prepare:
    """One holder, and thousands of waiters."""

    def prepare(scripts: Scripts, size: int) -> None:
        scripts.granted(_name(0))
        if sessions:
            _sessions(scripts, size, wanted, dead=dead)
        else:
            _wait(scripts, size, wanted)
        _limit(scripts, 1)

    return prepare


def _set_gone(scripts: Scripts, size: int) -> None:
    """All leases ended together, and Redis removed the set."""
    _hold(scripts, size, READ if scripts.kind == "rwlock" else 1)
    _limit(scripts, size)
    scripts.redis.delete(scripts.keys.base)


def _hash_gone(scripts: Scripts, size: int) -> None:
    """The hash was deleted under its holders."""
    _hold(scripts, size, READ if scripts.kind == "rwlock" else 1)
    scripts.redis.delete(scripts.key("meta"))
    _wait(scripts, size, WRITE if scripts.kind == "rwlock" else 1)


def _set_back(share: int, wanted: int) -> Prepare:
    def prepare(scripts: Scripts, size: int) -> None:
        """The clock was set back, so that all leases end too late."""
        _full(lambda size: size * share, share, wanted)(scripts, size)
        now = now_us(scripts) // 1000
        scripts.redis.zadd(scripts.keys.base, {token(_name(number)): now + 10**9 for number in range(size)})
        scripts.redis.hset(scripts.key("meta"), "ttl", 30_000)

    return prepare


def _acts(listed: int, wanted: int) -> dict[str, Act]:
    """Return every request that can be made; *listed* waiters are in one re-check."""
    again = [entry(f"w{number}w", permits=wanted) for number in range(listed)]
    return {
        "grant": lambda scripts, _: scripts.grant("new"),
        "only ask": lambda scripts, _: scripts.grant("new", wait=False),
        "renew": lambda scripts, _: scripts.renew(_name(0)),
        "release": lambda scripts, _: scripts.release(_name(0)),
        "leave": lambda scripts, _: scripts.release("w7w", permits=wanted),
        "re-check": lambda scripts, size: scripts.recheck(*again[: min(listed, size)]),
        "statistics": lambda scripts, _: scripts.run("statistics", first=0),
    }


def situations(listed: int) -> list[Situation]:
    """Return all of them; *listed* is how many waiters are in one re-check."""
    resize: Act = lambda scripts, size: scripts.resize(2 * size)  # noqa: E731
    shrink: Act = lambda scripts, _: scripts.resize(1)  # noqa: E731
    semaphore = {**_acts(listed, 1), "resize": resize}
    heavy = {**_acts(listed, 2), "resize": resize, "shrink": shrink}
    read, write = _acts(listed, READ), _acts(listed, WRITE)
    return [
        Situation("lock", "waiters of one process", _held_before(False), _acts(listed, 1)),
        Situation("lock", "sessions that cannot be reached", _held_before(True), _acts(listed, 1)),
        Situation("lock", "dead sessions", _held_before(True, dead=True), _acts(listed, 1)),
        Situation("semaphore", "holders and waiters", _full(lambda size: size, 1, 1), semaphore),
        Situation("semaphore", "the same, two permits each", _full(lambda size: 2 * size, 2, 2), heavy),
        Situation("semaphore", "counted again", _full(lambda size: 2 * size, 2, 2, counted=False), heavy),
        Situation("semaphore", "all holders dead", _ended(2, 1), semaphore),
        Situation("semaphore", "all holders dead, counted again", _ended(2, 1, counted=False), semaphore),
        Situation("semaphore", "limit of 1", _held_before(False), semaphore),
        Situation("semaphore", "sessions that cannot be reached", _held_before(True), semaphore),
        Situation("semaphore", "dead sessions", _held_before(True, dead=True), semaphore),
        Situation("semaphore", "its set has gone", _set_gone, semaphore),
        Situation("semaphore", "its hash was deleted", _hash_gone, semaphore),
        Situation("semaphore", "clock set back", _set_back(1, 1), semaphore),
        Situation("rwlock", "a writer, and waiting readers", _held_before(False, wanted=READ), read),
        Situation("rwlock", "readers, and waiting writers", _full(lambda size: size, READ, WRITE), write),
        Situation("rwlock", "counted again", _full(lambda size: size, READ, WRITE, counted=False), write),
        Situation("rwlock", "all readers dead", _ended(READ, WRITE), write),
        Situation("rwlock", "sessions that cannot be reached", _held_before(True, wanted=READ), read),
        Situation("rwlock", "dead sessions", _held_before(True, dead=True, wanted=READ), read),
        Situation("rwlock", "its set has gone", _set_gone, write),
        Situation("rwlock", "its hash was deleted", _hash_gone, write),
        Situation("rwlock", "clock set back", _set_back(READ, WRITE), write),
    ]
