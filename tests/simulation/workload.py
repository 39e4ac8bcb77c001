"""What the simulated programs do: everything that the public surface offers, at random, against each other."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, final

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

import aiolocks
from aiolocks import Lease
from aiolocks._core.answers import REPLY_TIMEOUT
from aiolocks._core.modes import EXCLUSIVE, UPGRADEABLE
from aiolocks._engine.lease import state_of
from aiolocks.events import Event

from .connection import SimulatedConnection, cluster_client
from .history import History, parts_of
from .network import Network
from .process import Process
from .things import Thing
from .world import World

LONGEST_BODY = 3.0

LONG_ENOUGH = 0.5
"""Seconds of a timeout in which what is free can be had over any network without faults."""

MARKED = 2**40
"""From this seed on, programs also revoke leases, hand off, adopt and have a `min_hold`, and start under a rate."""

_UNREACHABLE = (RedisConnectionError, RedisTimeoutError)


@final
class Program:
    """What one process runs: some tasks, each of which does some things one after the other."""

    def __init__(
        self, world: World, networks: list[Network], history: History, process: Process, things: list[Thing],
        *, calm: bool, far: bool, cluster: bool = False, package: Any = aiolocks,
    ) -> None:  # fmt: skip
        self._world = world
        self._history = history
        self._package = package
        self.process = process
        self._things = things
        self._rng = world.rng
        self.closing = False
        self.waiting: Counter[str] = Counter()
        self.asking: Counter[str] = Counter()
        retry = world.rng.choice([Retry(NoBackoff(), 0), Retry(ExponentialBackoff(0.5, 0.01), 3)])
        self._patience = world.rng.choice([1.0, 1.0, 2.0, 1.0 if far else 0.5])
        self._more = world.rng.choice([0, 0, 0, 0, 1])  # a rolling deployment changes the limit
        self._far = far
        self._marks = world.seed >= MARKED
        self._calm = calm  # then sessions end between, and begin anew
        self.channels = calm or not world.chance(0.08)
        # The library remembers servers by their address.
        place = f"run {world.run_number}, {process.name}"
        self.clients: list[Any] = []
        if cluster:
            self.clients.append(cluster_client(networks, process, place, channels=self.channels))
        for number, network in enumerate([] if cluster else networks):
            pool = ConnectionPool(
                connection_class=SimulatedConnection, network=network, process=process, channels=self.channels,
                host=f"{place}, server {number}", retry=retry, protocol=2, driver_info=None,
            )  # fmt: skip
            self.clients.append(Redis(connection_pool=pool))
        self.client: Any = self.clients[0]

    def begin(self, tasks: int, operations: int) -> None:
        for _ in range(tasks):
            self.process.begin(self._task(operations))

    def done(self) -> bool:
        return all(task.done() for task in self.process.tasks)

    async def visit(self, thing: Thing) -> None:
        """Take *thing* once and let it go: whoever comes new after all faults must get it."""
        if thing.kind == "rate":
            await self._begin(thing, self._make(thing, {}), 1)
            return
        self.asking[thing.base] += 1  # to the end, as nothing is watched closely after that
        self._patience = 2.0  # a lease shorter than its messages' way is never had
        for primitive in thing.eval(self.clients, thing.ttl * self._patience):
            lease = await self.insist(primitive)
            async with lease:
                self._history.acquired(self.process, lease, self._history.now_ns())
                self._history.ended(self.process, lease)

    async def insist(self, primitive: Any) -> Lease:
        while True:  # servers that are far away miss the time for a vote now and then
            with contextlib.suppress(aiolocks.QuorumError):
                lease: Lease = await primitive.acquire()
                return lease

    async def _task(self, operations: int) -> None:
        for _ in range(operations):
            await asyncio.sleep(self._rng.choice([0.0, 0.02, 0.3, 2.0 if self._calm else 0.3]) * self._rng.random())
            if self.closing:
                return
            await self._operate()

    async def _operate(self) -> None:
        rng, thing = self._rng, self._rng.choice(self._things)
        way = rng.choices([self._block, self._by_hand, self._try, self._ask, self._resize], [60, 20, 12, 4, 4])[0]
        options: dict[str, Any] = {}
        if rng.random() < 0.15:
            options["on_lost"] = "flag"
        if rng.random() < (0.6 if self._far else 0.1):
            options["renew"] = False
        if rng.random() < 0.1:
            options["max_hold"] = rng.uniform(0.1, 2.0)
        if self._marks:
            way = rng.choices([way, self._revoke, self._adopt], [16, 1, 2])[0]
            options["min_hold"] = rng.choice([0, 0, 0.05, 0.3])
        if thing.kind == "rate":
            way = self._start
        permits = rng.choice([1, 1, 2, thing.limit, thing.limit + 1]) if thing.kind == "semaphore" else 1
        cancelled_after = rng.choice([0.001, 0.01, 0.1, 1.0]) * rng.random() if rng.random() < 0.25 else None
        scope = asyncio.timeout(cancelled_after)
        try:
            async with scope:
                self.asking[thing.base] += 1
                try:
                    await way(thing, self._make(thing, options), permits)
                finally:
                    self.asking[thing.base] -= 1
        except Exception as error:
            if scope.expired() and type(error) is TimeoutError:
                self._world.meet("cancellations", self.process.name)
            else:
                self._expect(error)

    def _expect(self, error: Exception) -> None:
        """Note an error that the public contract names; anything else is a violation."""
        of, not_now = self._package, self._package._core.answers.NotNowError
        expected = (of.AcquireTimeoutError, of.LimitMismatchError, *_UNREACHABLE, of.LeaseLostError, of.QuorumError)
        if isinstance(error, not_now) and not str(error).startswith(("MOVED", "ASK")):
            self._world.meet("raised as Redis cannot run it just now", self.process.name)
        elif isinstance(error, expected):
            self._world.meet(f"raised {type(error).__name__}", self.process.name)
        else:
            self._world.violate(f"{self.process.name}: unexpected {error!r}")

    def _make(self, thing: Thing, options: dict[str, Any]) -> Any:
        options = {"per": thing.ttl} if thing.kind == "rate" else options | {"ttl": thing.ttl * self._patience}
        if thing.kind == "semaphore":
            options["limit"] = thing.limit + self._more
        return thing.make(self.clients, self._rng, options, self._package)

    def _timeout(self) -> float | None:
        return self._rng.choice([None, None, 0.0, 0.05, 0.5, 3.0])

    def _permits(self, thing: Thing, permits: int) -> dict[str, int]:
        return {"permits": permits} if thing.kind == "semaphore" else {}

    async def _block(self, thing: Thing, primitive: Any, permits: int) -> None:
        asked = self._history.now_ns()
        timeout = self._timeout()
        hold = primitive.hold(timeout=timeout, **self._permits(thing, permits))
        lease = await self._timed(thing, hold.__aenter__, timeout)
        try:
            self._acquired(thing, lease, asked)
            try:
                await self._work(thing, lease)
            finally:
                self._history.ended(self.process, lease)
        except BaseException as error:
            await hold.__aexit__(type(error), error, error.__traceback__)
            raise
        else:
            await hold.__aexit__(None, None, None)

    async def _by_hand(self, thing: Thing, primitive: Any, permits: int) -> None:
        asked = self._history.now_ns()
        timeout = self._timeout()

        acquire = partial(primitive.acquire, timeout=timeout, **self._permits(thing, permits))
        lease = await self._timed(thing, acquire, timeout)
        if self._marks and thing.kind in ("lock", "rlock", "semaphore") and self._rng.random() < 0.2:
            self._history.offers[thing.name].append((await lease.hand_off(), asked))
        else:
            await self._have(thing, primitive, lease, asked)

    async def _adopt(self, thing: Thing, primitive: Any, permits: int) -> None:
        """Go on with the lease that another program has handed off last; it was granted under the limit of then."""
        if offers := self._history.offers[thing.name]:
            text, asked = offers.pop()
            await self._have(thing, primitive, await primitive.adopt(text), asked)

    async def _revoke(self, thing: Thing, primitive: Any, permits: int) -> None:
        await primitive.revoke(timeout=self._rng.choice([0.0, 0.5, 2.0]))

    async def _try(self, thing: Thing, primitive: Any, permits: int) -> None:
        asked = self._history.now_ns()
        lease = await primitive.try_acquire(**self._permits(thing, permits))
        if lease is not None:
            await self._have(thing, primitive, lease, asked)
        elif not thing.in_parts:
            self._history.refused(self.process, thing.base, asked)

    async def _have(self, thing: Thing, primitive: Any, lease: Lease, asked: int) -> None:
        self._acquired(thing, lease, asked)
        try:
            await self._work(thing, lease)
        finally:
            self._history.ended(self.process, lease)
            await (lease.release() if self._rng.random() < 0.5 else self._release_by_name(primitive, lease))

    async def _release_by_name(self, primitive: Any, lease: Lease) -> None:
        try:
            await primitive.release()
        except RuntimeError:
            if not lease.lost:  # a loss is remembered for one more TTL, and then forgotten
                raise

    def _acquired(self, thing: Thing, lease: Lease, asked: int) -> None:
        self._world.meet(f"leases of {thing.kind}", self.process.name)
        self._history.acquired(self.process, lease, asked)

    async def _ask(self, thing: Thing, primitive: Any, permits: int) -> None:
        await (primitive.statistics() if self._rng.random() < 0.5 else primitive.locked())

    async def _resize(self, thing: Thing, primitive: Any, permits: int) -> None:
        if thing.kind == "semaphore":
            await primitive.resize(self._rng.choice([1, thing.limit, thing.limit, thing.limit + 2]))

    async def _start(self, thing: Thing, primitive: Any, permits: int) -> None:
        """Begin what a rate limits, some times in a row; few ask once only."""
        for _ in range(self._rng.choice([1, 2, 5])):
            await self._begin(thing, primitive, self._rng.choice([1, 1, thing.limit]), self._timeout())

    async def _begin(self, thing: Thing, limiter: Any, cost: int, timeout: float | None = None) -> None:
        heard: list[tuple[Any, Event]] = []
        stop = self._package._core.events.on_event(lambda event: heard.append((asyncio.current_task(), event)))
        try:
            await self._timed(thing, partial(limiter.acquire, cost=cost, timeout=timeout), timeout)
        finally:
            stop()
        if self.process.alive:
            self._world.meet("starts under a rate", self.process.name)
            mine = [event for task, event in heard if task is asyncio.current_task() and event.kind == "acquired"]
            self._history.started(thing, mine[-1].fencing_token, cost)

    async def _timed(self, thing: Thing, acquire: Callable[[], Awaitable[Any]], timeout: float | None) -> Any:
        """Acquire, and see that the caller's patience is respected. Whoever waits is counted meanwhile."""
        process, begun, awake_at = self.process, self.process.monotonic(), self.process.boottime()
        stops, asked = process.stops, self._history.now_ns()
        self.waiting[thing.base] += timeout is None
        try:
            return await acquire()
        except self._package.AcquireTimeoutError:
            # Under faults it may never have been heard; and to be granted takes some round trips.
            if self._calm and timeout is not None and timeout >= LONG_ENOUGH and not thing.in_parts:
                self._history.refused(process, thing.base, asked)
            raise
        except self._package._core.answers.NotNowError:
            ttl = thing.ttl * (1 if thing.kind == "rate" else self._patience)
            ridden_out = min(REPLY_TIMEOUT, ttl if timeout is None else min(timeout, ttl)) - 0.3
            if process.boottime() - awake_at < ridden_out:  # a suspended machine rides nothing out
                self._world.violate(f"I4: {process.name}: an outage was not ridden out")
            raise
        finally:
            self.waiting[thing.base] -= timeout is None
            # An undo may take a second longer. Nobody who was stopped can be on time.
            if timeout is not None and process.stops == stops and process.alive:
                allowed = (timeout or 10.0) + 1.1
                if process.monotonic() - begun > allowed:
                    self._world.violate(f"{process.name}: waited {process.monotonic() - begun:.3f} s, not {timeout:g}")

    async def _work(self, thing: Thing, lease: Lease) -> None:
        """Hold for a while, and write now and then: some writes arrive late, and some programs never look."""
        rng = self._rng
        left = rng.choice([0.0, 0.01, 0.1, 0.5, LONGEST_BODY]) * (rng.random() if not self._far else 1.0)
        if thing.ttl <= 2 and rng.random() < (0.3 if self._far else 0.15) and not self.closing:
            left = 3 * lease.remaining()  # to the end, if nothing renews it
        if thing.kind == "rlock":
            await self._reenter(thing, lease)
        elif thing.kind == "rwlock":
            await self._change_mode(lease)
        while True:
            if rng.random() < 0.7:
                self._write(thing, lease, None)
            elif rng.random() < 0.1:
                self._write(thing, lease, rng.random() * 2 * thing.ttl)
            if rng.random() < 0.1:
                with contextlib.suppress(*_UNREACHABLE, self._package._core.answers.NotNowError):
                    await lease.renew(rng.choice([None, thing.ttl / 2, thing.ttl * 2]) if thing.ttl >= 0.2 else None)
            if left <= 0 or (self.closing and left < 0.05):
                return
            pause = min(left, rng.uniform(0.01, 0.5))
            left -= pause
            await asyncio.sleep(pause)

    def _write(self, thing: Thing, lease: Lease, late: float | None) -> None:
        """Write where the lease excludes all others, or is of permits; now, or so many seconds late."""
        for part in parts_of(lease):
            if part.alone or thing.kind == "semaphore":
                args = (self.process, lease, part, thing.written_under(part.base, self._rng))
                if late is None:
                    self._history.write(*args)
                else:
                    self._world.after(late, self._history.write, *args)

    async def _reenter(self, thing: Thing, lease: Lease) -> None:
        """Take what this task holds already, perhaps on other terms: it is the same lease, and there is no waiting."""
        if self._rng.random() < 0.5:
            async with self._package.RLock(self.client, thing.name, ttl=thing.ttl) as again:
                self._world.meet("re-entries within a block", self.process.name)
                same = (again.token, again.fencing_token) == (lease.token, lease.fencing_token)
                if not same and not (self._marks and lease.lost):
                    self._world.violate(f"{self.process.name}: re-entered another lease")
                await asyncio.sleep(self._rng.random() * 0.1)
            if not (lease.held or lease.lost):
                self._world.violate(f"P5: {self.process.name}: an inner block has released the lease of the outer one")

    async def _change_mode(self, lease: Lease) -> None:
        """Be alone for a while, or go on as a reader."""
        rng, mode = self._rng, state_of(lease).request.terms.permits
        if mode == UPGRADEABLE and rng.random() < 0.6:
            asked = self._history.now_ns()
            async with lease.upgrade(timeout=self._timeout()) as alone, self._noted(alone, asked):
                self._world.meet("upgrades", self.process.name)
                for part in parts_of(alone):
                    self._history.write(self.process, alone, part, part.base)
                await asyncio.sleep(rng.choice([0.0, 0.01, 0.3]) * rng.random())
        if mode in (UPGRADEABLE, EXCLUSIVE) and rng.random() < 0.3:
            await asyncio.sleep(rng.random() * 0.1)
            self._history.downgraded(self.process, lease)
            await lease.downgrade()

    @contextlib.asynccontextmanager
    async def _noted(self, lease: Lease, asked: int) -> AsyncIterator[None]:
        self._history.acquired(self.process, lease, asked)
        try:
            yield
        finally:
            self._history.ended(self.process, lease)
