"""One run: servers, proxies and workers up; faults as planned; all healed; then the verdict."""

import asyncio
import json
import random
import signal
import subprocess
import time
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from pathlib import Path
from typing import final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from aiolocks import Election, Lease
from aiolocks.testing import FaultProxy, Recorder, keys_left
from tests.faults.support.server_clock import NoShim, ServerClock
from tests.support.lateness import SLACK, measured_lag
from tests.support.servers import RedisServer
from tests.support.workers import Worker, spawn

from .faults import Faults
from .plan import NAMES, TTL, WORKERS, Plan
from .sets import SetFaults, connections_of, set_for
from .verdict import Evidence, Verdict, judge
from .worker import SAMPLED_EACH, client_of, primitive


@final
class Workers:
    """The processes that live, one for each place; a killed one is recorded, and replaced."""

    def __init__(self, plan: Plan, urls: list[str], store_url: str, directory: Path, stack: ExitStack) -> None:
        self._plan = plan
        self._urls = urls
        self._store_url = store_url
        self._directory = directory
        self._stack = stack
        self._recorder = Recorder(directory / "history")
        stack.callback(self._recorder.close)
        self._generations = [0] * WORKERS
        self._starting: set[asyncio.Task[None]] = set()
        self._wrong: list[str] = []
        self.up: dict[int, Worker] = {}

    async def start(self, worker: int) -> None:
        """Start one, and return when it is at work."""
        self._generations[worker] += 1
        process = self._stack.enter_context(spawn(
            "-m", "tests.fleets.mix.worker", self._urls[worker], self._store_url, str(self._directory),
            str(self._plan.seed), str(worker), str(self._generations[worker]), str(self._plan.ttl),
            str(self._plan.replicas),
        ))  # fmt: skip
        if await process.says() == "up":
            self.up[worker] = process
        else:
            self._wrong.append(f"worker {worker} (process {process.pid}) did not start")

    def signal(self, worker: int, number: signal.Signals) -> None:
        if worker in self.up:
            self.up[worker].signal(number)

    async def kill(self, worker: int) -> None:
        """Kill one, and record it once it is dead: before that it may still act."""
        if (process := self.up.pop(worker, None)) is not None:
            await asyncio.to_thread(process.kill, self._recorder)

    async def replace(self, worker: int) -> None:
        if worker in self.up:
            await self.kill(worker)
            self._starting.add(asyncio.create_task(self.start(worker)))

    async def end(self) -> list[str]:
        """End all, some politely and some not; return what was wrong with how they ended."""
        await asyncio.gather(*self._starting)
        for worker in self._plan.killed_at_the_end:
            await self.kill(worker)
        for worker in self.up:
            self.signal(worker, signal.SIGTERM)
        wrong = self._wrong
        for worker, process in self.up.items():
            try:
                status = await process.ends(10)
            except subprocess.TimeoutExpired:
                status = -1
            if status != 0:
                wrong.append(f"C4: worker {worker} (process {process.pid}) ended with {status}")
        return wrong


async def one_server(directory: Path, stack: AsyncExitStack) -> Faults:
    """Start a server, which each worker reaches through a proxy of its own."""
    clock = None
    with suppress(NoShim):  # without it, the clock is not stepped
        clock = stack.enter_context(closing(ServerClock(directory)))
    options = {"appendonly": "yes", "appendfsync": "always"}
    environment = clock.environment if clock is not None else {}
    server = stack.enter_context(RedisServer(options=options, environment=environment))
    proxies = [await stack.enter_async_context(FaultProxy(path=server.socket_path)) for _ in range(WORKERS)]
    return Faults(server, clock, proxies)


async def run(plan: Plan, directory: Path) -> Verdict:
    """Carry out *plan*; files go into *directory*."""
    async with AsyncExitStack() as stack:
        place: Faults | SetFaults
        if plan.on == "server":
            place = await one_server(directory, stack)
        else:
            place = await asyncio.to_thread(set_for, plan)
            stack.push_async_callback(asyncio.to_thread, place.stop)
        store = stack.enter_context(RedisServer())
        workers = Workers(plan, place.urls, store.url, directory, stack.enter_context(ExitStack()))
        async with asyncio.timeout(60):
            await asyncio.gather(*(workers.start(worker) for worker in range(WORKERS)))
        sampling = asyncio.create_task(_sample_keys(place, directory / "samples-server"))
        await _carry_out(plan, place, workers)
        sampling.cancel()
        healed_at = time.monotonic()
        async with measured_lag() as lag:
            ending = asyncio.create_task(workers.end())
            waits = await _acquire_anew(place.url)
            late = SLACK * (plan.ttl + 1) + lag.worst
        wrong = await ending
        wrong += [f"C4: a fresh client had {name!r} only after {took:.3f} s" for name, took in waits if took > late]
        await asyncio.sleep(healed_at + 2 * plan.ttl + 0.5 * SLACK - time.monotonic())
        keys: dict[bytes, int] = {}
        for server in place.primaries():
            async with Redis.from_url(server.url) as admin:
                keys |= await keys_left(admin)
        async with Redis.from_url(store.url) as written:
            verdict = await judge(
                Evidence(directory, plan, place.losses, wrong, keys, connections_of(place.servers)), written
            )
        verdict.slowest = max(took for _, took in waits)
    return verdict


async def _carry_out(plan: Plan, place: Faults | SetFaults, workers: Workers) -> None:
    begun = time.monotonic()
    tasks: set[asyncio.Task[None]] = set()
    for strike in plan.strikes:
        await asyncio.sleep(begun + strike.at - time.monotonic())
        tasks.add(asyncio.create_task(place.strike(strike, workers)))
    await asyncio.sleep(begun + plan.seconds - time.monotonic())
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    await place.heal()


async def _sample_keys(place: Faults | SetFaults, path: Path) -> None:
    while True:
        await asyncio.sleep(SAMPLED_EACH)
        with suppress(RedisError):  # a server that is down has none to count
            keys = 0
            for server in place.primaries():
                async with Redis.from_url(server.url, socket_timeout=1) as admin:
                    keys += await admin.dbsize()
            with path.open("a") as file:
                print(json.dumps({"keys": keys}), file=file)


async def _acquire_anew(url: str) -> list[tuple[str, float]]:
    """C4: have each name once, by a client that is new; return how long each took."""

    async def wait_for(client: Redis, name: str) -> tuple[str, float]:
        begun = time.monotonic()
        if name == "leader":
            await Election(client, name, ttl=TTL).run(led)
        else:
            made, _, permits = primitive(client, name, random.Random(0), {"ttl": TTL})
            async with made.hold(timeout=30, **permits):
                pass
        return name, time.monotonic() - begun

    async def led(lease: Lease) -> None:
        lease.check()

    async with client_of(url) as client:
        return await asyncio.gather(*(wait_for(client, name) for name in NAMES))
