"""The loop whose clock jumps: virtual for timers, real for sockets and threads."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from aiolocks import LeaseLostError, LockManager
from aiolocks.testing import JumpingLoop
from tests.support.lateness import SLACK, assert_within

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        yield runner.run


def clock() -> float:
    return asyncio.get_running_loop().time()


def test_an_hour_costs_no_time(run: Run) -> None:
    started = time.monotonic()
    run(asyncio.sleep(3600))
    assert_within(time.monotonic() - started, SLACK * 1)


def test_the_clock_starts_at_zero_and_stands_still_between_jumps(run: Run) -> None:
    async def main() -> list[float]:
        before = clock()
        await asyncio.sleep(0)
        between = clock()
        await asyncio.sleep(30)
        return [before, between, clock()]

    assert run(main()) == [0.0, 0.0, 30.0]


def test_clock_and_time_are_the_same(run: Run) -> None:
    async def main() -> None:
        await asyncio.sleep(1.5)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        assert loop.clock() == loop.time() == 1.5

    run(main())


def test_timers_fire_in_the_order_of_their_times(run: Run) -> None:
    async def main() -> list[tuple[int, float]]:
        fired: list[tuple[int, float]] = []

        async def note(seconds: int) -> None:
            await asyncio.sleep(seconds)
            fired.append((seconds, clock()))

        await asyncio.gather(*map(note, (50, 7, 86_400, 1)))
        return fired

    assert run(main()) == [(1, 1.0), (7, 7.0), (50, 50.0), (86_400, 86_400.0)]


def test_years_pass_though_asyncio_waits_a_day_at_most(run: Run) -> None:
    run(asyncio.sleep(3 * 365 * 86_400.0))


def test_a_timeout_ends_a_wait_for_what_never_comes(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1e6):
                await asyncio.Event().wait()
        assert clock() == 1e6

    run(main())


def test_real_sockets_work(run: Run) -> None:
    async def main() -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return line

    assert run(main()) == b"hello\n"


def test_a_socket_that_is_slow_in_real_time_is_waited_for_when_nothing_is_scheduled(run: Run) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sender = threading.Timer(0.2, theirs.send, [b"late"])
        sender.start()

        async def main() -> bytes:
            return await asyncio.get_running_loop().sock_recv(ours, 10)

        assert run(main()) == b"late"
        sender.join()


def test_a_thread_is_waited_for_when_nothing_is_scheduled(run: Run) -> None:
    async def main() -> float:
        await asyncio.to_thread(time.sleep, 0.2)
        return clock()

    assert run(main()) == 0.0


def test_a_wait_that_nothing_can_end_is_an_error_instead_of_a_hang(run: Run) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="deadlock: nothing is scheduled"):
        run(main())


def test_after_a_deadlock_the_loop_still_cancels_its_tasks() -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(5)
            ended.append("cleanup")

    with pytest.raises(RuntimeError, match="deadlock"):
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(main())
    assert ended == ["cleanup"]


def test_a_jumping_loop_takes_leases_and_the_server_along(run: Run) -> None:
    async def main() -> float:
        locks = LockManager.from_url("memory://", ttl=10, renew=False)
        begun = asyncio.get_running_loop().time()
        with contextlib.suppress(LeaseLostError):
            async with locks.lock("orders:42"):
                await asyncio.sleep(3600)
        lost_after = asyncio.get_running_loop().time() - begun
        async with locks.lock("orders:42").hold(timeout=5):
            pass
        return lost_after

    assert 9 < run(main()) <= 11
