"""One process of some version of aiolocks: `python worker.py URL…`, a script that obeys lines of JSON.

The version is the first on PYTHONPATH, so this imports only public names that all versions have. A line is
`[number, verb, arguments, options]`, and its answer `[number, result, error]`. Verbs run side by side, each in a task
of its own. The end of the input ends the process.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, final

from redis.asyncio import Redis

import aiolocks
from aiolocks import HierarchicalLock
from aiolocks.compat import RedisLock

Interval: TypeAlias = tuple[int, int, int, list[int]]
"""A lease as its holder saw it: its first and last nanosecond, its permits, and its fencing tokens by name."""

TIMEOUT = 20.0
"""Seconds after which a waiter counts as stranded."""

ALONE = 1_000_000
"""How many permits a lease counts as that must be alone."""

KINDS: dict[str, Callable[..., Any]] = {
    "lock": lambda clients, name, **options: aiolocks.Lock(clients[0], name, **options),
    "rlock": lambda clients, name, **options: aiolocks.RLock(clients[0], name, **options),
    "semaphore": lambda clients, name, **options: aiolocks.Semaphore(clients[0], name, 1, **options),
    "permits": lambda clients, name, limit=3, **options: aiolocks.Semaphore(clients[0], name, limit, **options),
    "read lock": lambda clients, name, **options: aiolocks.RWLock(clients[0], name, **options).read,
    "write lock": lambda clients, name, **options: aiolocks.RWLock(clients[0], name, **options).write,
    "upgradeable lock": lambda clients, name, **options: aiolocks.RWLock(clients[0], name, **options).upgradeable,
    "multilock": lambda clients, name, **options: aiolocks.MultiLock(
        clients[0], [f"{name}, third", name, f"{name}, second"], **options
    ),
    "write table": lambda clients, name, **options: HierarchicalLock(clients[0], f"shop/{name}", **options).write,
    "read row": lambda clients, name, **options: HierarchicalLock(clients[0], f"shop/{name}/row", **options).read,
    "write row": lambda clients, name, **options: HierarchicalLock(clients[0], f"shop/{name}/row", **options).write,
    "redlock": lambda clients, name, **options: aiolocks.Redlock(clients, name, **options),
}


@final
class Worker:
    """What the verbs share: the clients of this process, and the leases that it has, by number."""

    def __init__(self, urls: list[str]) -> None:
        self._clients = [Redis.from_url(url) for url in urls]
        self._leases: list[Any] = []

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    def _made(self, kind: str, name: str, options: dict[str, Any]) -> Any:
        return KINDS[kind](self._clients, name, **options)

    def _kept(self, lease: Any) -> tuple[int, list[int]]:
        self._leases.append(lease)
        return len(self._leases) - 1, fences_of(lease)

    async def where(self) -> str:
        """Return the file of the version that this process runs."""
        return str(aiolocks.__file__)

    async def acquire(self, kind: str, name: str, permits: int = 1, **options: Any) -> tuple[int, list[int]]:
        """Return the number of a new lease, and its fencing tokens."""
        more = {} if permits == 1 else {"permits": permits}
        return self._kept(await self._made(kind, name, options).acquire(timeout=TIMEOUT, **more))

    async def try_acquire(self, kind: str, name: str, **options: Any) -> tuple[int, list[int]] | None:
        lease = await self._made(kind, name, options).try_acquire()
        return None if lease is None else self._kept(lease)

    async def held(self, lease: int) -> bool:
        return bool(self._leases[lease].held)

    async def use(self, verb: str, of: int | str, *arguments: Any, **options: Any) -> Any:
        """Call a verb of a lease, by its number; or of a primitive, by its kind and name."""
        if isinstance(of, int):
            return await getattr(self._leases[of], verb)()
        name, *more = arguments
        return await getattr(self._made(of, name, {}), verb)(*more, **options)

    async def turn(self, kind: str, name: str, work: float = 0.002, permits: int = 1, **options: Any) -> Interval:
        """Wait for the name, have it for *work* seconds in a block, and return when that was."""
        more = {} if permits == 1 else {"permits": permits}
        async with self._made(kind, name, options).hold(timeout=TIMEOUT, **more) as lease:
            return await used(lease, work, permits)

    async def upgraded(self, lease: int, work: float = 0.002) -> Interval:
        async with self._leases[lease].upgrade(timeout=TIMEOUT) as upgrade:
            return await used(upgrade, work, 1)

    async def until_lost(self, kind: str, name: str, **options: Any) -> tuple[str, int]:
        """Hold until the lease is lost, and return why, and the moment at which the body had ended."""
        ended = 0
        try:
            async with self._made(kind, name, options).hold(timeout=TIMEOUT):
                try:
                    await asyncio.Event().wait()
                finally:
                    ended = time.monotonic_ns()
        except aiolocks.LeaseLostError as lost:
            return str(lost.reason), ended
        raise AssertionError("it ended without a loss")

    async def revoke(self, kind: str, name: str, **options: Any) -> list[int]:
        """Return the fencing tokens of the leases that were revoked."""
        holders = await self._made(kind, name, {}).revoke(timeout=TIMEOUT, **options)
        return [holder.fencing_token for holder in holders]

    async def state(self, kind: str, name: str) -> tuple[int, int, int]:
        """Return how many hold the name, how many wait for it, and its limit."""
        statistics = await self._made(kind, name, {}).statistics()
        return statistics.holders, statistics.waiting, statistics.limit

    async def known(self, kind: str, name: str) -> tuple[list[int | None], list[int | None]]:
        """Return the processes that hold the name, and those that wait for it."""
        made = self._made(kind, name, {})
        return [one.pid for one in await made.holders()], [one.pid for one in await made.waiters()]

    async def called(self, kind: str, name: str) -> list[tuple[str | None, str | None]]:
        """Return the task of each holder, and its note if this version knows notes."""
        holders = await self._made(kind, name, {}).holders()
        return [(one.task, getattr(one, "note", None)) for one in holders]

    async def adopt(self, kind: str, name: str, text: str, **options: Any) -> tuple[int, list[int]]:
        return self._kept(await self._made(kind, name, options).adopt(text))

    async def guard(self, lease: int, *command: str) -> Any:
        [answer] = await self._leases[lease].guard(command)
        return answer.decode() if isinstance(answer, bytes) else answer

    async def read(self, key: str) -> tuple[str | None, str]:
        value, version = await aiolocks.Versioned(self._clients[0], key).read()
        return value.decode() if isinstance(value, bytes) else value, version

    async def write(self, key: str, value: str, version: str) -> str | None:
        """Return the new version, or None if the value had been changed."""
        try:
            return await aiolocks.Versioned(self._clients[0], key).write(value, version)
        except aiolocks.VersionConflictError:
            return None

    async def count(self, key: str, times: int) -> None:
        """Add one to a number, so many times."""
        for _ in range(times):
            await aiolocks.Versioned(self._clients[0], key).update(lambda old: str(int(old or 0) + 1), attempts=1000)

    async def plain_acquire(self, name: str, **options: Any) -> int | None:
        """Acquire a lock of redis-py's kind; return its number, or None after the timeout."""
        lock = RedisLock(self._clients[0], name, **options)
        if not await lock.acquire(blocking_timeout=TIMEOUT):
            return None
        self._leases.append(lock)
        return len(self._leases) - 1

    async def plain_turn(self, name: str, work: float = 0.002) -> Interval:
        async with RedisLock(self._clients[0], name, blocking_timeout=TIMEOUT):
            began = time.monotonic_ns()
            await asyncio.sleep(work)
            return began, time.monotonic_ns(), 1, []

    async def plain_waiting(self, name: str) -> int:
        """Return the number of waiters for a lock of redis-py's kind."""
        lines = self._clients[0].scan_iter(match=f"aiolocks:exact:*{name}*:q:*", count=1000)
        return sum([await self._clients[0].zcard(line) async for line in lines])

    async def lead(self, name: str, work: float = 0.05) -> Interval:
        """Be the leader once."""

        async def leading(lease: aiolocks.Lease) -> Interval:
            return await used(lease, work, 1)

        return await aiolocks.Election(self._clients[0], name, ttl=1.0).run(leading)

    async def once(self, name: str) -> int:
        """Return the process that ran the function."""

        async def function() -> int:
            await asyncio.sleep(0.2)
            return os.getpid()

        return await aiolocks.Once(self._clients[0], name, keep=5, ttl=1.0).run(function)

    async def starts(self, name: str, count: int, limit: int, per: float) -> list[float]:
        """Start so often, and return when that was."""
        limiter, began = aiolocks.RateLimiter(self._clients[0], name, limit, per=per), []
        for _ in range(count):
            async with limiter:
                began.append(time.monotonic())
        return began

    async def crowd(self, names: dict[str, tuple[str, int]], tasks: int, seconds: float) -> dict[str, list[Interval]]:
        """Have *tasks* tasks for each kind take its name again and again; a kind comes with its name and permits."""
        until = time.monotonic() + seconds
        had: dict[str, list[Interval]] = {kind: [] for kind in names}

        async def take(kind: str, name: str, permits: int) -> None:
            while time.monotonic() < until:
                *_, fences = at = await self.turn(kind, name, 0.001, 1 if permits == ALONE else permits)
                had[kind].append((*at[:2], permits, fences))

        async with asyncio.TaskGroup() as group:
            for kind, (name, permits) in names.items():
                for _ in range(tasks):
                    group.create_task(take(kind, name, permits))
        return had


def fences_of(lease: aiolocks.Lease) -> list[int]:
    return [fence for _, fence in sorted(lease.fencing_tokens.items())]


async def used(lease: aiolocks.Lease, work: float, permits: int) -> Interval:
    began = time.monotonic_ns()
    await asyncio.sleep(work)
    lease.check()
    return began, time.monotonic_ns(), permits, fences_of(lease)


async def answer(worker: Worker, number: int, verb: str, arguments: list[Any], options: dict[str, Any]) -> None:
    result = error = None
    try:
        act = getattr(worker, verb, None) or partial(worker.use, verb)
        result = await act(*arguments, **options)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    os.write(sys.stdout.fileno(), json.dumps([number, result, error]).encode() + b"\n")


async def main(urls: list[str]) -> None:
    worker = Worker(urls)
    lines = asyncio.StreamReader(limit=2**20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks = set[asyncio.Task[None]]()
    while line := await lines.readline():
        task = asyncio.create_task(answer(worker, *json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await worker.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test ends it
    asyncio.run(main(sys.argv[1:]))
