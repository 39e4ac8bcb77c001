"""How each fault of a plan is done to the workers and the server, and undone after its time."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar, Protocol, final

from redis.asyncio import Redis

from aiolocks.testing import FaultProxy
from tests.faults.support.server_clock import ServerClock
from tests.support.servers import RedisServer

from .plan import KINDS, NAMES, Strike


class Crew(Protocol):
    """The workers."""

    def signal(self, worker: int, number: signal.Signals) -> None:
        """Send a signal to one."""
        ...

    async def replace(self, worker: int) -> None:
        """Kill one, and start another."""
        ...


@dataclass(frozen=True, slots=True)
class Loss:
    """A server lost all leases with a fencing token up to `fence`, at some time after `since_ns`; or it may have."""

    since_ns: int
    fence: int
    names: frozenset[str] = frozenset(NAMES)
    """Of these only."""


async def _stop_worker(crew: Crew, strike: Strike) -> None:
    crew.signal(strike.worker, signal.SIGSTOP)
    try:
        await asyncio.sleep(strike.seconds)
    finally:
        crew.signal(strike.worker, signal.SIGCONT)


async def _kill_worker(crew: Crew, strike: Strike) -> None:
    await crew.replace(strike.worker)


async def _fork_and_kill(crew: Crew, strike: Strike) -> None:
    crew.signal(strike.worker, signal.SIGUSR1)
    await asyncio.sleep(0.2)
    await crew.replace(strike.worker)


async def _block_loop(crew: Crew, strike: Strike) -> None:
    crew.signal(strike.worker, signal.SIGUSR2)


ON_WORKER: dict[str, Callable[[Crew, Strike], Awaitable[None]]] = {
    "worker stopped": _stop_worker,
    "worker killed": _kill_worker,
    "worker forked and killed": _fork_and_kill,
    "loop blocked": _block_loop,
}


@final
class Faults:
    """Strikes, one after the other at the server and any number at once at the workers."""

    def __init__(self, server: RedisServer, clock: ServerClock | None, proxies: list[FaultProxy]) -> None:
        self._server = server
        self._clock = clock
        self._proxies = proxies
        self._one_at_a_time = asyncio.Lock()
        self.losses: list[Loss] = []

    async def strike(self, strike: Strike, crew: Crew) -> None:
        """Do it and undo it; when cancelled, undo it at once."""
        if KINDS[strike.kind].whom == "server":
            async with self._one_at_a_time:
                await self._on_server[strike.kind](self, strike)
        elif (befall := ON_WORKER.get(strike.kind)) is not None:
            await befall(crew, strike)
        else:
            await self._on_connections[strike.kind](self, strike, self._proxies[strike.worker])

    async def heal(self) -> None:
        """Undo what is still in force, whatever it is."""
        self._server.resume()
        async with self._admin() as admin:
            await admin.client_unpause()
            await admin.config_set("maxmemory", "0")
            await admin.config_set("min-replicas-to-write", "0")
        for proxy in self._proxies:
            proxy.black_hole = proxy.refuse = False
            proxy.delay_requests = proxy.delay_replies = 0.0
            proxy.release_requests()

    # What befalls a worker's connections.

    async def _set(self, proxy: FaultProxy, control: str, value: object, otherwise: object, seconds: float) -> None:
        setattr(proxy, control, value)
        try:
            await asyncio.sleep(seconds)
        finally:
            setattr(proxy, control, otherwise)

    async def _delay_requests(self, strike: Strike, proxy: FaultProxy) -> None:
        await self._set(proxy, "delay_requests", strike.seconds, 0.0, 2 * strike.seconds)

    async def _delay_replies(self, strike: Strike, proxy: FaultProxy) -> None:
        await self._set(proxy, "delay_replies", strike.seconds, 0.0, 2 * strike.seconds)

    async def _black_hole(self, strike: Strike, proxy: FaultProxy) -> None:
        await self._set(proxy, "black_hole", True, False, strike.seconds)

    async def _swallow_requests(self, strike: Strike, proxy: FaultProxy) -> None:
        await self._set(proxy, "black_hole", "requests", False, strike.seconds)

    async def _swallow_replies(self, strike: Strike, proxy: FaultProxy) -> None:
        await self._set(proxy, "black_hole", "replies", False, strike.seconds)

    async def _refuse(self, strike: Strike, proxy: FaultProxy) -> None:
        proxy.cut_all()
        await self._set(proxy, "refuse", True, False, strike.seconds)

    async def _hold_back(self, strike: Strike, proxy: FaultProxy) -> None:
        proxy.hold_requests()
        try:
            await asyncio.sleep(strike.seconds)
        finally:
            proxy.release_requests()

    async def _cut(self, strike: Strike, proxy: FaultProxy) -> None:
        proxy.cut_all()

    async def _cut_wakeups(self, strike: Strike, proxy: FaultProxy) -> None:
        proxy.cut_all(b"SUBSCRIBE")

    async def _lose_request(self, strike: Strike, proxy: FaultProxy) -> None:
        proxy.drop_next_request(b"aiolocks:", "reset" if strike.reset else "black_hole")

    async def _lose_reply(self, strike: Strike, proxy: FaultProxy) -> None:
        proxy.drop_next_reply(b"aiolocks:", "reset" if strike.reset else "black_hole")

    # What befalls the server.

    async def _stop_server(self, strike: Strike) -> None:
        self._server.pause()
        try:
            await asyncio.sleep(strike.seconds)
        finally:
            self._server.resume()

    async def _kill_server(self, strike: Strike) -> None:
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.restart)

    async def _command(self, *words: str) -> Any:
        async with self._admin() as admin:
            run: Any = admin.execute_command
            return await run(*words)

    async def _sleep(self, strike: Strike) -> None:
        await self._command("DEBUG", "SLEEP", f"{strike.seconds:.3f}")

    async def _pause(self, strike: Strike) -> None:
        await self._command("CLIENT", "PAUSE", str(round(1000 * strike.seconds)), "WRITE")
        await asyncio.sleep(strike.seconds)

    async def _kill_normal(self, strike: Strike) -> None:
        await self._command("CLIENT", "KILL", "TYPE", "normal")

    async def _kill_pubsub(self, strike: Strike) -> None:
        await self._command("CLIENT", "KILL", "TYPE", "pubsub")

    async def _flush_scripts(self, strike: Strike) -> None:
        await self._command("SCRIPT", "FLUSH")

    async def _configure(self, setting: str, seconds: float) -> None:
        await self._command("CONFIG", "SET", setting, "1")
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._command("CONFIG", "SET", setting, "0")

    async def _fill(self, strike: Strike) -> None:
        await self._configure("maxmemory", strike.seconds)

    async def _want_replicas(self, strike: Strike) -> None:
        await self._configure("min-replicas-to-write", strike.seconds)

    # What makes the server forget.

    async def _flush(self, strike: Strike) -> None:
        since = time.monotonic_ns()
        async with self._admin() as admin:
            await admin.flushall()
            self.losses.append(Loss(since, await self._server_us(admin)))

    async def _lose_data(self, strike: Strike) -> None:
        since = time.monotonic_ns()
        await asyncio.to_thread(self._server.kill)
        rmtree(self._server.directory / "appendonlydir", ignore_errors=True)
        Path(self._server.directory / "appendonly.aof").unlink(missing_ok=True)  # where Redis 6.2 keeps it
        ahead = self._clock.ahead if self._clock is not None else 0.0
        self.losses.append(Loss(since, round((time.time() + ahead) * 1e6)))
        await asyncio.to_thread(self._server.restart)

    async def _step(self, strike: Strike) -> None:
        if self._clock is None:
            return
        seconds = max(strike.seconds, 0.2)
        async with self._admin() as admin:
            before = await self._server_us(admin)
            self.losses.append(Loss(time.monotonic_ns(), before + round(seconds * 1e6 / 2)))
            self._clock.step(seconds)

    async def _server_us(self, admin: Redis) -> int:
        reply: Any = await admin.time()
        return int(reply[0]) * 1_000_000 + int(reply[1])

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Redis]:
        async with Redis(unix_socket_path=self._server.socket_path, client_name="admin") as admin:
            yield admin

    _on_connections: ClassVar[dict[str, Callable[["Faults", Strike, FaultProxy], Awaitable[None]]]] = {
        "requests delayed": _delay_requests,
        "replies delayed": _delay_replies,
        "requests held back": _hold_back,
        "black hole": _black_hole,
        "requests swallowed": _swallow_requests,
        "replies swallowed": _swallow_replies,
        "connections cut": _cut,
        "wake-up connection cut": _cut_wakeups,
        "connections refused": _refuse,
        "request lost": _lose_request,
        "reply lost": _lose_reply,
    }
    _on_server: ClassVar[dict[str, Callable[["Faults", Strike], Awaitable[None]]]] = {
        "server stopped": _stop_server,
        "server killed": _kill_server,
        "DEBUG SLEEP": _sleep,
        "CLIENT PAUSE WRITE": _pause,
        "CLIENT KILL normal": _kill_normal,
        "CLIENT KILL pubsub": _kill_pubsub,
        "SCRIPT FLUSH": _flush_scripts,
        "out of memory": _fill,
        "too few replicas": _want_replicas,
        "FLUSHALL": _flush,
        "server killed, data gone": _lose_data,
        "clock stepped forward": _step,
    }
