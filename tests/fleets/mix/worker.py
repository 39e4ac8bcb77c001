"""One worker of the mix: `python -m tests.fleets.mix.worker URL STORE DIRECTORY SEED INDEX GENERATION TTL REPLICAS`.

Its tasks take and use what the plan names, at random, until SIGTERM; what they did is in the log. SIGUSR1 makes it
fork, SIGUSR2 block its loop, and SIGHUP revoke the leases of a name. What it does not expect goes to a file
`stderr-PID`, which must stay empty.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, final

from redis.asyncio import Redis
from redis.exceptions import RedisError

import aiolocks
from aiolocks._engine.lease import state_of
from aiolocks.testing import Recorder
from tests.support.lateness import SLACK

from .plan import ALONE, LIMIT, NAMES, PER, PERMITS, READERS, STARTS, TTL
from .store import write

TASKS = 5
SAMPLED_EACH = float(os.environ.get("AIOLOCKS_SAMPLED_EACH", "60"))
PAUSE = 0.05
"""Seconds for which a body does nothing, at most, between looks at its lease."""


@final
class Watch:
    """Notes one lease from its grant to its end, as its holder sees it by its own clock."""

    def __init__(self, recorder: Recorder, lease: aiolocks.Lease, permits: int, asked_ns: int) -> None:
        self._recorder = recorder
        self._lease = lease
        self._permits = permits
        self._until_ns = self._deadline_ns()
        # Whoever was stopped before it could look has never believed to hold it.
        self._seen_ns = min(time.monotonic_ns(), self._until_ns)
        recorder.record("acquired", lease, permits=permits, asked_ns=asked_ns, at_ns=self._seen_ns)
        recorder.record("until", lease, at_ns=self._until_ns)

    def look(self) -> None:
        """Note how long the lease certainly lasts: if this process is killed, it believed in it no longer."""
        now = time.monotonic_ns()
        if self._lease.held:
            self._seen_ns = now
            if (until := self._deadline_ns()) > self._until_ns:
                self._until_ns = until
                self._recorder.record("until", self._lease, at_ns=until)

    def end(self) -> None:
        """Note the end, before the release is sent; a loss at the moment at which it could be known."""
        now = time.monotonic_ns()  # first: this process may be stopped at any moment
        if self._lease.held:
            self._recorder.record("released", self._lease, permits=self._permits, at_ns=now)
        else:
            lost_ns = max(self._seen_ns, min(now, self._deadline_ns()))
            self._recorder.record("lost", self._lease, permits=self._permits, at_ns=lost_ns)

    def _deadline_ns(self) -> int:
        state = state_of(self._lease)
        left = state.validity.deadline - state.context.clock()
        return time.monotonic_ns() + int(max(left, -1e6) * 1e9)


@final
class Program:
    """What the tasks of this process do."""

    def __init__(self, client: Redis, store: Redis, recorder: Recorder, seed: str, ttl: float, replicas: int) -> None:
        self._ttl = ttl
        self._replicas = replicas
        self._client = client
        self._store = store
        self._recorder = recorder
        self._dice = [random.Random(f"{seed}/{number}") for number in range(TASKS)]
        self.leases: set[aiolocks.Lease] = set()
        self.writing: set[asyncio.Task[object]] = set()
        self._newest = [""] * TASKS

    async def run(self, number: int) -> None:
        """Do one thing after the other, until cancelled."""
        dice = self._dice[number]
        task = asyncio.current_task()
        assert task is not None
        while True:
            await asyncio.sleep(dice.choice([0, 0.05]) * dice.random())
            given_up_after = dice.choice([0.005, 0.1, 1.0]) * dice.random() if dice.random() < 0.15 else None
            scope = asyncio.timeout(given_up_after)
            try:
                async with scope:
                    await self._operate(number, dice)
            except (aiolocks.AcquireTimeoutError, aiolocks.LeaseLostError, RedisError):
                pass
            except TimeoutError:
                if not scope.expired():
                    raise
            if task.cancelling():
                print(f"P12: a cancellation was swallowed by {self._newest[number]}", file=sys.stderr, flush=True)
                return

    async def _operate(self, number: int, dice: random.Random) -> None:
        name = dice.choice((*NAMES, "rate", "once"))
        options: dict[str, Any] = {
            "ttl": dice.choice([self._ttl / 2, self._ttl, self._ttl]),
            "on_lost": dice.choice(["cancel", "cancel", "flag"]), "renew": dice.random() < 0.9,
            "watchdog": dice.choice(["task", "task", "task", "thread"]), "replicas": self._replicas,
        }  # fmt: skip
        way = dice.choice(["block", "block", "block", "by hand", "try", "handed off"])
        self._newest[number] = f"{way} of {name!r} with {options}"
        asked = time.monotonic_ns()
        if name in ("leader", "rate", "once"):
            await getattr(self, f"_{name}")(dice, options["ttl"], asked)
            return
        options |= {"min_hold": dice.choice([0, 0, 0, 0.1]), "track": dice.random() < 0.1}
        made, permits, more = primitive(self._client, name, dice, options)
        match way:
            case "block":
                async with made.hold(timeout=dice.choice([None, None, 0.3, 2.0]), **more) as lease:
                    await self._use(dice, lease, permits, asked)
                return
            case "by hand" | "handed off":
                lease = await made.acquire(timeout=dice.choice([None, 0.0, 1.0]), **more)
                if way == "handed off":
                    lease = await made.adopt(await lease.hand_off())
            case _:
                lease = await made.try_acquire(**more)
        if lease is not None:
            await self._use_and_release(dice, lease, permits, asked)

    async def revoke(self, dice: random.Random) -> None:
        """Revoke what holds one of the names."""
        made, _, _ = primitive(self._client, dice.choice(NAMES[:-1]), dice, {})
        with contextlib.suppress(aiolocks.AcquireTimeoutError, RedisError):
            await made.revoke(timeout=0.5, reason="the mix")

    def begin(self, work: Coroutine[Any, Any, object]) -> "asyncio.Task[object]":
        task = asyncio.create_task(work)
        self.writing.add(task)
        task.add_done_callback(self.writing.discard)
        return task

    async def _leader(self, dice: random.Random, ttl: float, asked: int) -> None:
        async def lead(lease: aiolocks.Lease) -> None:
            await self._use(dice, lease, 1, asked)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await aiolocks.Election(self._client, "leader", ttl=ttl, replicas=self._replicas).run(lead)

    async def _rate(self, dice: random.Random, ttl: float, asked: int) -> None:
        async with aiolocks.RateLimiter(self._client, "rate", STARTS, per=PER, acquire_timeout=dice.choice([0, ttl])):
            self._recorder.record("started", name="rate", asked_ns=asked)

    async def _once(self, dice: random.Random, ttl: float, asked: int) -> None:
        async def function() -> int:
            await asyncio.sleep(0.1 * dice.random())
            return asked

        outcome = await aiolocks.Once(self._client, "once", keep=0.5, ttl=ttl, acquire_timeout=1).run(function)
        assert isinstance(outcome, int), outcome

    async def _use_and_release(self, dice: random.Random, lease: aiolocks.Lease, permits: int, asked: int) -> None:
        try:
            await self._use(dice, lease, permits, asked)
        except BaseException:
            with contextlib.suppress(RedisError):  # or it would take the place of a cancellation
                await lease.release()
            raise
        await lease.release()

    async def _use(self, dice: random.Random, lease: aiolocks.Lease, permits: int, asked: int) -> None:
        """Write now and then, without a look at the lease, for a while: while nothing befalls, it lasts that long."""
        self.leases.add(lease)
        watch = Watch(self._recorder, lease, permits, asked)
        try:
            left = dice.choice([0.0, 0.0, 0.01, 0.05, 0.1, 0.2, 2 * TTL if dice.random() < 0.3 else 0.0])
            if not state_of(lease).options.renew:
                left = min(left, 0.01)
            while True:
                await self._write(lease)
                watch.look()
                if dice.random() < 0.05:
                    with contextlib.suppress(RedisError):
                        await lease.renew()
                if left <= 0:
                    return
                pause = min(left, dice.uniform(0.005, PAUSE))
                left -= pause
                await asyncio.sleep(pause)
        finally:
            watch.end()
            self.leases.discard(lease)

    async def _write(self, lease: aiolocks.Lease) -> None:
        """Write in a task of its own: redis-py sometimes swallows a cancellation while it asks."""
        await asyncio.shield(self.begin(write(self._store, lease.name, lease.fencing_token, lease.token)))


def primitive(client: Redis, name: str, dice: random.Random, options: dict[str, Any]) -> tuple[Any, int, Any]:
    """Return what *name* is of, for how many permits its lease counts, and the arguments of `acquire`."""
    if name == PERMITS or "/" in name:
        options.pop("track", None)  # their keys change with each grant to another
    if name == PERMITS:
        permits = dice.choice([1, 1, 1, 2, LIMIT])
        return aiolocks.Semaphore(client, name, LIMIT, **options), permits, {"permits": permits}
    if name == READERS:
        both = aiolocks.RWLock(client, name, **options)
        return (both.write, ALONE, {}) if dice.random() < 0.3 else (both.read, 1, {})
    if "/" in name:
        return aiolocks.HierarchicalLock(client, name, **options).write, 1, {}
    return (aiolocks.RLock if name == "re-entered" else aiolocks.Lock)(client, name, **options), 1, {}


def sample(path: Path, loop: Any) -> None:
    """Note once a minute how much there is of what could leak."""
    gc.collect()
    found = {
        "memory": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "objects": len(gc.get_objects()),
        "tasks": len(asyncio.all_tasks(loop)),
        "timers": sum(not timer.cancelled() for timer in loop._scheduled),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    with path.open("a") as file:
        print(json.dumps(found), file=file)
    loop.call_later(SAMPLED_EACH, sample, path, loop)


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Redis]:
    """Give redis-py's client of one server, or the manager's, which knows the URLs of sets."""
    if "+" not in url.partition(":")[0]:
        async with Redis.from_url(url) as client:
            yield client
    else:
        async with aiolocks.LockManager.from_url(url) as locks:
            yield locks.client


def fork(program: Program, recorder: Recorder) -> None:
    """Fork a child that lives on with copies of all connections and leases, of which it may believe none."""
    if os.fork() == 0:
        for lease in list(program.leases):
            if lease.held:
                recorder.record("child holds", lease)
        time.sleep(2 * TTL)
        os._exit(0)


async def main(url: str, store_url: str, directory: Path, seed: str, ttl: float, replicas: int) -> None:
    recorder = Recorder(directory / "history")
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks()
    dice = random.Random(seed)
    async with client_of(url) as client, Redis.from_url(store_url) as store:
        await store.ping()
        program = Program(client, store, recorder, seed, ttl, replicas)
        tasks = [asyncio.create_task(program.run(number)) for number in range(TASKS)]
        signals: dict[int, Callable[[], object]] = {
            signal.SIGTERM: lambda: [task.cancel() for task in tasks],
            signal.SIGHUP: lambda: program.begin(program.revoke(dice)),
            signal.SIGUSR1: lambda: fork(program, recorder),
            signal.SIGUSR2: lambda: time.sleep(2 * TTL * dice.random()),
        }
        for number, act in signals.items():
            loop.add_signal_handler(number, act)
        loop.call_later(SAMPLED_EACH, sample, directory / f"samples-{os.getpid()}", loop)
        print("up", flush=True)
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                print(f"a task ended with {ended!r}", file=sys.stderr, flush=True)
        give_up_at = time.monotonic() + 2 * ttl + 0.5 * SLACK
        while left := asyncio.all_tasks() - others:
            if time.monotonic() > give_up_at:
                print(f"still there: {left}", file=sys.stderr, flush=True)
                break
            await asyncio.sleep(0.02)


def begin(
    url: str, store_url: str, directory: str, seed: str, index: str, generation: str, ttl: str, replicas: str
) -> None:
    path = Path(directory)
    os.dup2(os.open(path / f"stderr-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    logging.basicConfig(filename=path / f"messages-{os.getpid()}", format="%(levelname)s %(name)s %(message)s")
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork")  # the thread is ours, and the hook knows
    asyncio.run(main(url, store_url, path, f"{seed}/{index}/{generation}", float(ttl), int(replicas)))


if __name__ == "__main__":
    if defect := os.environ.get("AIOLOCKS_DEFECT"):
        from tests.simulation.defects import planted

        with planted(defect):
            begin(*sys.argv[1:])
    else:
        begin(*sys.argv[1:])
