"""Worker processes for tests, the log that they write together, and what must be true of it.

CLOCK_MONOTONIC is one clock for all processes of a host, so that their records can be put in order.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.support.children import family

ACQUIRED, RELEASED, LOST, KILLED = "acquired", "released", "lost", "killed"
"""Events. A worker records `acquired` after it was granted, and `released` or `lost` before it lets anybody else know;
the parent records `killed` when the worker is dead. Other events are allowed and mean nothing to the checkers."""

ALONE = 1_000_000
"""How many permits a writer counts as, so that `max_depth` is this exactly if it was alone, and else more."""

Log: TypeAlias = str | os.PathLike[str]

_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the log."""

    monotonic_ns: int
    pid: int
    event: str
    token: str
    fence: int
    permits: int = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """One lease as its holder saw it: from its grant until it was given up. `end_ns` is None if it never was."""

    start_ns: int
    end_ns: int | None
    pid: int
    token: str
    fence: int
    permits: int = 1


def open_log(path: Log) -> int:
    """Return a file descriptor for `record`; any number of processes may have one. The caller closes it."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def record(
    fd: int, event: str, token: str | bytes = "", fence: int = 0, *, permits: int = 1, pid: int | None = None
) -> None:
    """Append one record by one write, so that lines of several processes never mix and a killed one leaves no half.

    Args:
        fd: From `open_log`.
        event: What happened just now.
        token: The lease's token.
        fence: The lease's fencing token.
        permits: How many permits of a semaphore the lease has.
        pid: Whom it happened to; None means this process.
    """
    fields = {
        "monotonic_ns": time.monotonic_ns(),
        "pid": os.getpid() if pid is None else pid,
        "event": event,
        "token": token.hex() if isinstance(token, bytes) else token,
        "fence": fence,
    }
    if permits != 1:
        fields["permits"] = permits
    os.write(fd, json.dumps(fields).encode() + b"\n")


def read_records(path: Log) -> list[Record]:
    """Return all records in order of time."""
    with open(path, encoding="utf-8") as lines:
        return sorted((Record(**json.loads(line)) for line in lines), key=lambda record: record.monotonic_ns)


def holds(records: Iterable[Record]) -> list[Hold]:
    """Return each hold in order of its start.

    Raises:
        ValueError: One token was acquired twice without an end between.
    """
    finished: list[Hold] = []
    current: dict[tuple[int, str], Record] = {}
    for entry in sorted(records, key=lambda record: record.monotonic_ns):
        if entry.event == ACQUIRED:
            if (entry.pid, entry.token) in current:
                raise ValueError(f"process {entry.pid} acquired twice with one token: {entry}")
            current[entry.pid, entry.token] = entry
        elif entry.event in (RELEASED, LOST):
            begun = current.pop((entry.pid, entry.token), None)
            finished += [_hold(begun, entry.monotonic_ns)] if begun else []
        elif entry.event == KILLED:
            for key in [key for key in current if key[0] == entry.pid]:
                finished.append(_hold(current.pop(key), entry.monotonic_ns))
    finished += [_hold(begun, None) for begun in current.values()]
    return sorted(finished, key=lambda hold: hold.start_ns)


def max_depth(records: Iterable[Record]) -> int:
    """Return the most permits that were held at one instant; for a mutex 1 is right (C1)."""
    changes: list[tuple[int, int]] = []
    for hold in holds(records):
        changes.append((hold.start_ns, hold.permits))
        if hold.end_ns is not None:
            changes.append((hold.end_ns, -hold.permits))
    depth = deepest = 0
    for _, change in sorted(changes):  # at one instant, ends come first
        depth += change
        deepest = max(deepest, depth)
    return deepest


def overlaps(records: Iterable[Record]) -> list[tuple[Hold, Hold]]:
    """Return each pair of holds that were live at one instant, the earlier first; for a mutex none is right (C1)."""
    pairs: list[tuple[Hold, Hold]] = []
    live: list[Hold] = []
    for hold in holds(records):
        live = [other for other in live if other.end_ns is None or other.end_ns > hold.start_ns]
        pairs += [(other, hold) for other in live]
        live.append(hold)
    return pairs


@contextmanager
def spawn(*arguments: Log, env: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Run this Python with *arguments* (a script and its own, or `-m` and a module) in the repository's directory.

    Its standard output is a text pipe, for a line that says it is ready. On leaving, it and all that it forked are
    killed, stopped ones too.
    """
    paths = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with family(sys.executable, *arguments, stdin=subprocess.DEVNULL, cwd=_REPOSITORY, env=environment) as process:
        yield process


def kill(process: "subprocess.Popen[str]", fd: int) -> None:
    """Kill a worker (SIGKILL), and record it once it is dead: before that it may still act."""
    process.kill()
    process.wait()
    record(fd, KILLED, pid=process.pid)


def _hold(begun: Record, end_ns: int | None) -> Hold:
    return Hold(begun.monotonic_ns, end_ns, begun.pid, begun.token, begun.fence, begun.permits)
