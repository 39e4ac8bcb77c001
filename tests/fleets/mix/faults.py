"""How each fault of a plan is done to the workers and the server, and undone after its time."""

import asyncio
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, final

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


async def befall(crew: Crew, strike: Strike) -> bool:
    """Do to a worker what the strike says; False if it is no fault of workers."""
    match strike.kind:
        case "worker stopped":
            crew.signal(strike.worker, signal.SIGSTOP)
            try:
                await asyncio.sleep(strike.seconds)
            finally:
                crew.signal(strike.worker, signal.SIGCONT)
        case "worker killed":
            await crew.replace(strike.worker)
        case "worker forked and killed":
            crew.signal(strike.worker, signal.SIGUSR1)
            await asyncio.sleep(0.2)
            await crew.replace(strike.worker)
        case "name revoked":
            crew.signal(strike.worker, signal.SIGHUP)
        case "loop blocked":
            crew.signal(strike.worker, signal.SIGUSR2)
        case _:
            return False
    return True


@final
class Faults:
    """Strikes, one after the other at the server and any number at once at the workers."""

    def __init__(self, server: RedisServer, clock: ServerClock | None, proxies: list[FaultProxy]) -> None:
        self._server = server
        self._clock = clock
        self._proxies = proxies
        self._one_at_a_time = asyncio.Lock()
        self.url = server.url
        self.urls = [proxy.url for proxy in proxies]
        self.servers = [server]
        self.losses: list[Loss] = []

    def primaries(self) -> list[RedisServer]:
        return self.servers

    async def strike(self, strike: Strike, crew: Crew) -> None:
        """Do it and undo it; when cancelled, undo it at once."""
        if KINDS[strike.kind].whom == "server":
            async with self._one_at_a_time:
                await self._on_server(strike)
        elif not await befall(crew, strike):
            await self._on_connections(strike, self._proxies[strike.worker])

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

    async def _on_connections(self, strike: Strike, proxy: FaultProxy) -> None:
        async def hold(control: str, value: object, otherwise: object, seconds: float = strike.seconds) -> None:
            setattr(proxy, control, value)
            try:
                await asyncio.sleep(seconds)
            finally:
                setattr(proxy, control, otherwise)

        match strike.kind:
            case "requests delayed":
                await hold("delay_requests", strike.seconds, 0.0, 2 * strike.seconds)
            case "replies delayed":
                await hold("delay_replies", strike.seconds, 0.0, 2 * strike.seconds)
            case "requests held back":
                proxy.hold_requests()
                try:
                    await asyncio.sleep(strike.seconds)
                finally:
                    proxy.release_requests()
            case "black hole":
                await hold("black_hole", True, False)
            case "requests swallowed":
                await hold("black_hole", "requests", False)
            case "replies swallowed":
                await hold("black_hole", "replies", False)
            case "connections refused":
                proxy.cut_all()
                await hold("refuse", True, False)
            case "connections cut":
                proxy.cut_all()
            case "wake-up connection cut":
                proxy.cut_all(b"SUBSCRIBE")
            case "request lost":
                proxy.drop_next_request(b"aiolocks:", "reset" if strike.reset else "black_hole")
            case "reply lost":
                proxy.drop_next_reply(b"aiolocks:", "reset" if strike.reset else "black_hole")
            case _:
                raise AssertionError(f"unknown: {strike}")

    async def _on_server(self, strike: Strike) -> None:
        match strike.kind:
            case "server stopped":
                self._server.pause()
                try:
                    await asyncio.sleep(strike.seconds)
                finally:
                    self._server.resume()
            case "server killed":
                await asyncio.to_thread(self._server.kill)
                await asyncio.to_thread(self._server.restart)
            case "DEBUG SLEEP":
                await self._command("DEBUG", "SLEEP", f"{strike.seconds:.3f}")
            case "CLIENT PAUSE WRITE":
                await self._command("CLIENT", "PAUSE", str(round(1000 * strike.seconds)), "WRITE")
                await asyncio.sleep(strike.seconds)
            case "CLIENT KILL normal" | "CLIENT KILL pubsub" | "SCRIPT FLUSH":
                await self._command(*words_of(strike))
            case "out of memory":
                await self._configure("maxmemory", strike.seconds)
            case "too few replicas":
                await self._configure("min-replicas-to-write", strike.seconds)
            case "FLUSHALL":
                since = time.monotonic_ns()
                async with self._admin() as admin:
                    await admin.flushall()
                    self.losses.append(Loss(since, await self._server_us(admin)))
            case "server killed, data gone":
                await self._lose_data()
            case "clock stepped forward":
                await self._step(max(strike.seconds, 0.2))
            case _:
                raise AssertionError(f"unknown: {strike}")

    async def _command(self, *words: str) -> None:
        async with self._admin() as admin:
            run: Any = admin.execute_command
            await run(*words)

    async def _configure(self, setting: str, seconds: float) -> None:
        await self._command("CONFIG", "SET", setting, "1")
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._command("CONFIG", "SET", setting, "0")

    async def _lose_data(self) -> None:
        since = time.monotonic_ns()
        await asyncio.to_thread(self._server.kill)
        rmtree(self._server.directory / "appendonlydir", ignore_errors=True)
        Path(self._server.directory / "appendonly.aof").unlink(missing_ok=True)  # where Redis 6.2 keeps it
        ahead = self._clock.ahead if self._clock is not None else 0.0
        self.losses.append(Loss(since, round((time.time() + ahead) * 1e6)))
        await asyncio.to_thread(self._server.restart)

    async def _step(self, seconds: float) -> None:
        if self._clock is None:
            return
        async with self._admin() as admin:
            before = await self._server_us(admin)
            self.losses.append(Loss(time.monotonic_ns(), before + round(seconds * 1e6 / 2)))
            self._clock.step(seconds)

    async def _server_us(self, admin: Redis) -> int:
        reply: Any = await admin.time()
        return int(reply[0]) * 1_000_000 + int(reply[1])

    def _admin(self) -> Redis:
        return Redis(unix_socket_path=self._server.socket_path, client_name="admin")


def words_of(strike: Strike) -> list[str]:
    """Return the command after which the strike is called."""
    return strike.kind.replace("KILL", "KILL TYPE").split()
