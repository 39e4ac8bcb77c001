"""The loop whose clock jumps: virtual for timers, real for sockets and threads."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from aiolocks.testing import FaultProxy, JumpingLoop
from tests.support.lateness import SLACK, assert_within
from tests.support.network import command
from tests.support.servers import RedisServer
from tests.support.virtual import clock
from tests.support.workers import spawn

_YEARS = 3 * 365 * 86_400
"""Seconds; asyncio waits for a day at most."""

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        yield runner.run


def test_the_clock_starts_at_zero_and_jumps_to_each_timer_in_the_order_of_their_times_at_no_cost(run: Run) -> None:
    fired: list[tuple[int, float]] = []

    async def note(seconds: int) -> None:
        await asyncio.sleep(seconds)
        fired.append((seconds, clock()))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        await asyncio.sleep(0)
        assert loop.clock() == clock() == 0.0
        await asyncio.gather(*map(note, (50, 7, _YEARS, 1)))
        assert loop.clock() == clock()

    started = time.monotonic()
    run(main())
    assert fired == [(1, 1.0), (7, 7.0), (50, 50.0), (_YEARS, _YEARS)]
    assert_within(time.monotonic() - started, SLACK * 1)


def test_a_socket_or_thread_that_is_slow_in_real_time_is_waited_for_when_nothing_is_scheduled(run: Run) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sender = threading.Timer(0.2, theirs.send, [b"late"])
        sender.start()

        async def main() -> bytes:
            received = await asyncio.get_running_loop().sock_recv(ours, 10)
            await asyncio.to_thread(time.sleep, 0.2)
            assert clock() == 0.0
            return received

        assert run(main()) == b"late"
        sender.join()


ENDLESS = """
import asyncio
from aiolocks.testing._loop import JumpingLoop

async def main():
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await asyncio.sleep(5)
        print("cleanup")

try:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main())
except RuntimeError as error:
    print(error)
"""


def test_a_wait_that_nothing_can_end_is_an_error_and_the_loop_still_cancels_its_tasks() -> None:
    """In a process of its own, as each further thread is one that could end it."""
    with spawn("-c", ENDLESS) as worker:
        said, _ = worker.process.communicate(timeout=30)
    assert said.splitlines() == [
        "cleanup", "deadlock: nothing is scheduled, and no socket or thread is left to wait for",
    ]  # fmt: skip


@pytest.mark.rest
def test_delays_of_a_proxy_are_virtual_on_a_jumping_loop(run: Run, server: RedisServer) -> None:
    async def main() -> tuple[bytes, float]:
        async with FaultProxy(path=server.socket_path) as proxy:
            proxy.delay_requests = proxy.delay_replies = 1800.1
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(command(b"PING"))
            reply = await reader.readline()
            writer.close()
            return reply, clock()

    assert run(main()) == (b"+PONG\r\n", pytest.approx(3600.2))
