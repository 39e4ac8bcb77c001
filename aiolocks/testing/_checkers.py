"""Checks that every history must pass, whatever faults there were: pure functions over recorded events.

Each returns a list of errors, with the events that contradict each other. An empty list is a pass. C1 to C4 are the
names of the checks in the project's own fault tests.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ._history import ACCEPTED, ACQUIRED, BUSY, FAILED, LIMIT, REFUSED, TIMEOUT, Held, HistoryEvent, holds, in_order

Limits = int | Mapping[str, int]
"""Maximum number of permits in use, for every name or by name. A name that is not listed is a mutex."""


def check_exclusion(history: Iterable[HistoryEvent], limits: Limits = 1) -> list[str]:
    """C1: no two holds of a mutex overlap, and a semaphore's permits in use never exceed its limit.

    "limit" events record changes of the limit. A lower limit revokes nothing, so each acquisition is judged by the
    largest limit that was in force between its request and the time when its holder knew of the grant.
    """
    history = list(history)
    wrong: list[str] = []
    for name, held in _by_name(history).items():
        changes = _limit_changes(history, name)
        live: list[Held] = []
        for new in held:
            live = [other for other in live if not other.ended_by(new.start_ns)]
            limit = max(_limits_in_force(changes, limits, new.start))
            if limit == 1:
                wrong += [f"C1: two holders of {name!r}: {other}; {new}" for other in live]
            elif sum(other.start.permits for other in live) + new.start.permits > limit:
                others = "; ".join(str(other) for other in live)
                wrong.append(f"C1: more than {limit} permits of {name!r} held: {new}; {others}")
            live.append(new)
    return wrong


def check_fencing(history: Iterable[HistoryEvent]) -> list[str]:
    """C2: a resource never accepts a fencing token smaller than an earlier one, and no two leases share a token."""
    wrong: list[str] = []
    newest: dict[str, HistoryEvent] = {}
    owners: dict[tuple[str, int], HistoryEvent] = {}
    for event in in_order(history):
        if event.event not in (ACQUIRED, ACCEPTED):
            continue
        first = owners.setdefault((event.name, event.fence), event)
        if first.token != event.token:
            wrong.append(f"C2: two leases with one fencing token: {first}; {event}")
        if event.event == ACCEPTED:
            before = newest.get(event.name)
            if before is not None and before.fence > event.fence:
                wrong.append(f"C2: an older fencing token after a newer one: {before}; {event}")
            newest[event.name] = event
    return wrong


def stale_writes(history: Iterable[HistoryEvent]) -> int:
    """Count the writes of former holders that a resource without fencing tokens would have accepted.

    If it is 0 although faults were injected, the faults had no effect.
    """
    return sum(event.event == REFUSED for event in history)


def check_linearizable(
    history: Iterable[HistoryEvent], limits: Limits = 1, *, exclusive: bool = True, free_after: float | None = None
) -> list[str]:
    """C3: the history is possible for one fenced mutex or pool of permits, where each call acts at one instant.

    In general every order of the calls must be tried. Here fencing tokens rise with each grant, so only the order of
    the tokens is possible. Each grant is put at its earliest possible instant: after its request, after the grants with
    smaller tokens, and after enough permits were returned. If that is later than the time when its holder knew of it,
    the history is wrong, because an earlier grant never hinders a later one.

    An unrecorded request may have been sent at any time before its grant. An unrecorded lease is ignored.

    With *free_after*, refusals are judged too: "busy" or "timeout" is wrong if the name was free from the request until
    the answer. The name is free only while no lease can be on the server, and no other call can have been granted or be
    queued. So every call has to be recorded, however it ended.

    Args:
        exclusive: Whether to count permits. Pass False if the server itself lost leases (its clock stepped, or its data
            was lost): then only the order of the grants is promised.
        free_after: Seconds until the server has ended each lease that was released, lost, or never reached its caller:
            the longest TTL and `min_hold`, and the longest delay of a request. None does not judge refusals.
    """
    history = list(history)
    wrong: list[str] = [] if free_after is None or not exclusive else _false_refusals(history, limits, free_after)
    for name, held in _by_name(history).items():
        changes = _limit_changes(history, name)
        earlier: list[Held] = []
        point: float = float("-inf")
        for new in sorted(held, key=lambda each: each.start.fence):
            if new.asked_ns is not None:
                point = max(point, new.asked_ns)
            if exclusive:
                limit = max(_limits_in_force(changes, limits, new.start))
                earlier = [other for other in earlier if not other.ended_by(point)]
                waiting = sorted(earlier, key=_end)
                while waiting and sum(other.start.permits for other in waiting) + new.start.permits > limit:
                    point = max(point, _end(waiting.pop(0)))
            if point > new.start_ns:
                before = max((other for other in held if other.start.fence < new.start.fence), key=_latest)
                wrong.append(f"C3: not in the order of fencing tokens: {before}; {new}")
                point = new.start_ns
            earlier.append(new)
    return wrong


def check_ended(history: Iterable[HistoryEvent]) -> list[str]:
    """C4, for holders: each lease was released or lost, or its process was killed."""
    return [f"C4: still held at the end: {held}" for held in holds(history) if held.end is None]


def check_residue(keys: Mapping[bytes, int]) -> list[str]:
    """C4, for the server: after the last lease and waiter only residue stays, and it expires.

    Residue is a fencing token, a semaphore's limit, the newest ticket of a queue, a tombstone, the reason of a
    revocation, the last answers to a lease's guards, the two marks of a `Versioned`, the outcomes of a `Once`, and what
    a session has published.

    Args:
        keys: Each key of the library with its PTTL, as returned by `keys_left`.
    """
    wrong: list[str] = []
    for key, left_ms in sorted(keys.items()):
        if not (_is_version(key) or _PARTS.search(key) or _SESSION.search(key)):
            wrong.append(f"C4: left on the server: {key!r}, for {left_ms} ms")
        elif left_ms < 0:
            wrong.append(f"C4: stays on the server for ever: {key!r}")
    return wrong


_PARTS = re.compile(rb"\}[^}:]*:(?:fence|meta|ticket|agreed|kept|newest|[tgr]:[^}]*)\Z", re.DOTALL)
"""Side keys that are residue. The last brace ends the name's tag, and colons in the rest of a path are escaped."""

_SESSION = re.compile(rb"\A[^{]*session:[\w-]{11}\Z", re.DOTALL)
"""The key of a session. It belongs to no name, so it has no tag."""

_VERSIONS = re.compile(rb"versioned:(?:[0-9a-f]{32}:)?\{|versioned:(?:tagged|[0-9a-f]{32}):[^{]*\{")
"""A prefix has no braces, so the kind comes before the first brace, as does the start of a key with its own tag."""


def _is_version(key: bytes) -> bool:
    return _VERSIONS.search(key[: key.find(b"{") + 1]) is not None


def _false_refusals(history: list[HistoryEvent], limits: Limits, free_after: float) -> list[str]:
    """Return an error for each call that was refused although the name was free all the time."""
    after_ns = round(free_after * 1e9)
    taken: dict[str, list[tuple[HistoryEvent, float, float]]] = defaultdict(list)
    for held in holds(history):
        asked = held.asked_ns
        taken[held.start.name].append((held.start, float("-inf") if asked is None else asked, _end(held) + after_ns))
    wrong: list[str] = []
    for event in history:
        if event.event in (TIMEOUT, FAILED):  # it was queued, or granted a lease that never reached its caller
            asked = event.asked_ns
            begin = float("-inf") if asked is None else asked
            taken[event.name].append((event, begin, event.monotonic_ns + after_ns))
    for event in history:
        if event.event not in (BUSY, TIMEOUT) or event.asked_ns is None:
            continue
        limit = min(_limits_in_force(_limit_changes(history, event.name), limits, event))
        others = [
            other.permits
            for other, begin, end in taken[event.name]
            if other is not event and begin <= event.monotonic_ns and end >= event.asked_ns
        ]
        if sum(others) + event.permits <= limit:
            wrong.append(f"C3: refused although it was free since {event.asked_ns / 1e9:.6f}: {event}")
    return wrong


async def keys_left(client: Any, prefix: str = "aiolocks:") -> dict[bytes, int]:
    """Return each key that begins with *prefix*, and its PTTL; *client* is any `redis.asyncio.Redis`.

    Raises:
        RedisError: Redis could not be asked. Cancellation is harmless.
    """
    left: dict[bytes, int] = {}
    async for found in client.scan_iter(match=_literally(prefix) + "*", count=1000):
        key = found.encode() if isinstance(found, str) else found
        left_ms = await client.pttl(found)
        if left_ms != -2:  # -2: it expired after the scan
            left[key] = left_ms
    return left


def _literally(prefix: str) -> str:
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in prefix)


def _by_name(history: Iterable[HistoryEvent]) -> dict[str, list[Held]]:
    found: dict[str, list[Held]] = defaultdict(list)
    for held in holds(history):
        found[held.start.name].append(held)
    return found


def _limit_changes(history: list[HistoryEvent], name: str) -> list[HistoryEvent]:
    return in_order(event for event in history if event.event == LIMIT and event.name == name)


def _limits_in_force(changes: list[HistoryEvent], limits: Limits, call: HistoryEvent) -> list[int]:
    """Return the limits that were in force at any time from the request of *call* until its end."""
    first = limits if isinstance(limits, int) else limits.get(call.name, 1)
    asked = call.monotonic_ns if call.asked_ns is None else call.asked_ns
    found: list[int] = [first]
    for event in changes:
        began = event.monotonic_ns if event.asked_ns is None else event.asked_ns
        if event.monotonic_ns <= asked:
            found = [event.permits]
        elif began <= call.monotonic_ns:
            found.append(event.permits)
    return found


def _end(held: Held) -> float:
    return float("inf") if held.end is None else held.end.monotonic_ns


def _latest(held: Held) -> float:
    return max(held.start_ns if held.asked_ns is None else held.asked_ns, min(_end(held), 1e30))
