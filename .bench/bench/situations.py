"""Things that go wrong around one lock (lost replies, cancellations, blocked loops), and how a library handles them.

Nothing is assumed about a library: the result is when another client of the same library gets the lock.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiolocks.testing import FaultProxy
from bench.actor import actor
from bench.figures import Run
from bench.peers import PEERS, Client, Turn
from bench.scenario import Server

SOON = 0.5
"""Seconds within which an unused lock must be free: far more than any library takes, far less than a lease."""

MANY = 10
"""Number of acquisitions that are cancelled, as a single one could succeed by luck."""
_ON_ITS_WAY = 0.3
"""Seconds that a request spends in the network, while its sender is cancelled."""
_PATIENCE = 4
"""Number of leases for which the observing client waits for a lock that no one holds."""
_STOPPED_WITHIN = 0.1
"""Maximum seconds of work after a blocked loop is back, to count as stopped at the first await."""


def found(passed: bool, text: str, seconds: float | None = None) -> Run:
    """Return an outcome; `{seconds}` in *text* stands for the figure."""
    figures = {"passed": float(passed)} | ({} if seconds is None else {"seconds": seconds})
    return Run(figures, (text,))


async def lost_reply(library: str, ttl: float, server: Server) -> Run:
    async with _proxied(library, ttl, server) as (proxy, client, other):
        turn = client.lock("bench:lost", ttl)
        proxy.drop_next_reply(b"bench:lost")
        asked = time.monotonic()
        got, held = await _attempt(turn.acquire, 3 * ttl)
        took = time.monotonic() - asked
        if got == "acquired":
            await turn.release(held)
        left = await _free_after(other.lock("bench:lost", ttl), _PATIENCE * ttl)
        if got != "acquired":
            return found(left <= SOON, f"{got}, and the lock stayed taken for {{seconds}} s", left)
        if left > SOON:
            return found(False, "acquired, but the lock stayed taken for {seconds} s after its release", left)
        if took > SOON:
            return found(False, "waited {seconds} s for its own lease to end", took)
        return found(True, "acquired after {seconds} s", took)


async def cancelled_acquire(library: str, ttl: float, server: Server) -> Run:
    async with _proxied(library, ttl, server) as (proxy, client, other):
        names = [f"bench:cancelled:{number}" for number in range(MANY)]
        proxy.delay_requests = _ON_ITS_WAY
        asking = [asyncio.ensure_future(client.lock(name, ttl).acquire()) for name in names]
        await asyncio.sleep(_ON_ITS_WAY / 3)
        proxy.delay_requests = 0.0
        for one in asking:
            one.cancel()
        await asyncio.wait(asking, timeout=ttl)
        await asyncio.sleep(_ON_ITS_WAY)  # now all that was on its way has arrived
        return await _left_behind(other, names, ttl)


async def cancelled_release(library: str, ttl: float, server: Server) -> Run:
    turns, delays = range(6), (0.5, 1.5, 2.5, 3.5)
    async with _proxied(library, ttl, server) as (proxy, client, other):
        names = [f"bench:cancelled:{number}" for number in range(len(turns) + len(delays))]
        over = [asyncio.Event() for _ in names]
        holding = [
            asyncio.create_task(_hold(client.lock(name, ttl), end)) for name, end in zip(names, over, strict=True)
        ]
        await asyncio.sleep(ttl / 4)
        proxy.delay_requests = _ON_ITS_WAY / 3
        loop = asyncio.get_running_loop()
        for number, (task, end) in enumerate(zip(holding, over, strict=True)):
            end.set()
            if number < len(turns):
                for _ in range(turns[number]):
                    await asyncio.sleep(0)
                task.cancel()
            else:
                loop.call_later(delays[number - len(turns)] * _ON_ITS_WAY / 3, task.cancel)
        await asyncio.wait(holding, timeout=ttl)
        proxy.delay_requests = 0.0
        await asyncio.sleep(_ON_ITS_WAY)
        return await _left_behind(other, names, ttl)


async def blocked_loop(library: str, ttl: float, server: Server) -> Run:
    run = await _blocked(library, ttl, server, {})
    if library != "aiolocks":
        return run
    thread = await _blocked(library, ttl, server, {"watchdog": "thread"})
    passed = min(run.figures["passed"], thread.figures["passed"])
    text = f'{run.remarks[0]}; with `watchdog="thread"`: {thread.remarks[0]}'
    return found(passed == 1, text, run.figures.get("seconds"))


async def _blocked(library: str, ttl: float, server: Server, options: dict[str, Any]) -> Run:
    """Let a holder block its loop for two leases, then work on for a quarter of one; another process waits."""
    async with AsyncExitStack() as stack:
        blocked = await stack.enter_async_context(
            actor(library, server.url, ttl, blocks=2 * ttl, works=ttl / 4, options=options)
        )
        other = await stack.enter_async_context(actor(library, server.url, ttl, keeps=True))
        await blocked.ask()
        await blocked.granted(ttl)
        await other.ask()
        woke, stopped, *told = (await blocked.expect("ended", 5 * ttl)).split()
        try:
            overlap = (int(stopped) - await other.granted(0.01)) / 1e9
        except TimeoutError:
            overlap = 0.0
    if overlap <= 0:
        return found(not told, f"ended with {told[0]}" if told else "the lease was kept")
    worked = (int(stopped) - int(woke)) / 1e9
    if told and worked <= _STOPPED_WITHIN:
        return found(True, f"two holders for {{seconds}} s; stopped at its first await by {told[0]}", overlap)
    end = f"learned of it at its release ({told[0]})" if told else "its block ended without an error"
    return found(False, f"two holders for {{seconds}} s; worked on, and {end}", overlap)


@asynccontextmanager
async def _proxied(library: str, ttl: float, server: Server) -> AsyncIterator[tuple[FaultProxy, Client, Client]]:
    """Yield a proxy, a client behind it, and a client without it; both have open connections and loaded scripts."""
    peer = PEERS[library]
    async with (
        FaultProxy(path=server.admin_url.removeprefix("unix://")) as proxy,
        peer.connect(proxy.url) as client,
        peer.connect(server.url) as other,
    ):
        for side, one in enumerate((client, other)):
            await asyncio.gather(*(_once(one.lock(f"bench:warm:{side}:{number}", ttl)) for number in range(MANY)))
        yield proxy, client, other


async def _once(turn: Turn) -> None:
    held = await turn.acquire()
    await turn.release(held)


async def _hold(turn: Turn, over: asyncio.Event) -> None:
    assert turn.block is not None
    async with turn.block():
        await over.wait()


async def _attempt(act: Callable[[], Awaitable[Any]], patience: float) -> tuple[str, Any]:
    """Run *act* and return how it ended, as text, and its result.

    It runs in the calling task, because some libraries remember there what they hold.
    """
    bound = asyncio.timeout(patience)
    try:
        async with bound:
            result = await act()
    except Exception as error:
        return f"still waiting after {patience:g} s" if bound.expired() else type(error).__name__, None
    return ("acquired" if getattr(result, "success", result) else "False"), result


async def _free_after(turn: Turn, patience: float) -> float:
    """Return after how many seconds another client gets the lock; *patience* if it does not."""
    asked = time.monotonic()
    got, held = await _attempt(turn.acquire, patience)
    took = time.monotonic() - asked
    if got == "acquired":
        await turn.release(held)
    return min(took, patience)


async def _left_behind(other: Client, names: list[str], ttl: float) -> Run:
    """Return how many of *names* stay taken without a holder, and for how long."""
    times = await asyncio.gather(*(_free_after(other.lock(name, ttl), _PATIENCE * ttl) for name in names))
    left = [after for after in times if after > SOON]
    if not left:
        return found(True, f"none of {len(names)} left behind")
    over = "over " if max(left) >= _PATIENCE * ttl else ""
    return found(False, f"{len(left)} of {len(names)} stayed taken for {over}{{seconds}} s", max(left))
