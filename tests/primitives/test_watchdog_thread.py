"""`watchdog="thread"`: a lease is kept while the loop is blocked, and not when it is dead."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, Semaphore
from tests.support.cases import the_rest_slow
from tests.support.clients import chosen_client
from tests.support.clusters import nodes
from tests.support.heard import hearing
from tests.support.inside import polling
from tests.support.lateness import kept
from tests.support.network import until
from tests.support.primitives import STEADY
from tests.support.servers import RedisServer

TTL = 1.0
BASE = "aiolocks:lock:{blocked}"

pytestmark = [pytest.mark.redis, pytest.mark.real_time]
Main = Callable[[Redis], Coroutine[Any, Any, None]]


def uvloop_factory() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop_factory], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, server: RedisServer) -> Callable[[Main], None]:
    """Runs a program on a loop of its own, and sees that no thread stays behind."""

    async def with_client(main: Main) -> None:
        async with chosen_client(server) as client:
            await main(client)

    def run(main: Main) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(with_client(main))
        assert not watchdogs()

    return run


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "aiolocks-watchdog"]


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


@pytest.mark.parametrize("block", the_rest_slow([time.sleep, compute], quick=1))
def test_a_blocked_loop_keeps_its_lease(run: Callable[[Main], None], block: Callable[[float], None]) -> None:
    """F9: asleep, or computing in Python."""

    async def main(client: Redis) -> None:
        lock = Lock(client, "blocked", ttl=STEADY, watchdog="thread")
        semaphore = Semaphore(client, "blocked", 1, ttl=STEADY, watchdog="thread")
        async with lock as lease, semaphore as permit:
            block(1.5 * STEADY)
            assert lease.held
            permit.check()

    run(main)


@pytest.mark.rest
def test_a_loop_without_life_for_max_stall_loses_its_lease(run: Callable[[Main], None]) -> None:
    async def main(client: Redis) -> None:
        with pytest.raises(LeaseLostError):
            async with Lock(client, "blocked", ttl=TTL, watchdog="thread", max_stall=0.5) as lease:
                time.sleep(2 * TTL)
                assert not lease.held

    run(main)


@pytest.mark.rest
def test_a_loop_without_life_is_logged_from_the_thread_and_told_of_once_when_it_comes_round(
    run: Callable[[Main], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main(client: Redis) -> None:
        with hearing() as heard:
            async with Lock(client, "blocked", ttl=4 * TTL, watchdog="thread", max_stall=0.5) as lease:
                while not any("has shown no life for 0.5 s" in record.getMessage() for record in caplog.records):
                    time.sleep(0.1)  # and the loop does not come round
                assert not heard.of("stalled")
                await until(lambda: bool(heard.of("stalled")))
        (stalled,) = heard.of("stalled")
        assert (stalled.name, stalled.seconds, stalled.fencing_token) == ("blocked", 0.5, lease.fencing_token)

    run(main)
    assert [record.threadName for record in caplog.records] == ["aiolocks-watchdog"]


def test_a_loss_shows_while_the_loop_is_still_blocked(run: Callable[[Main], None]) -> None:
    async def main(client: Redis) -> None:
        with pytest.raises(LeaseLostError, match="its key expired"):
            async with Lock(client, "blocked", ttl=TTL, watchdog="thread") as lease:
                await client.delete(BASE)
                ends_at = time.monotonic() + 5 * TTL
                while not lease.lost and time.monotonic() < ends_at:
                    time.sleep(0.01)  # and the loop does not come round
                assert lease.lost
                assert not lease.held
                await asyncio.sleep(10)

    run(main)


@pytest.mark.rest
def test_releases_race_with_renewals_and_nothing_stays(run: Callable[[Main], None], server: RedisServer) -> None:
    """Leases so short that a renewal is on its way at most releases."""

    async def main(client: Redis) -> None:
        async def work(number: int) -> None:
            lock = Lock(client, f"race {number}", ttl=0.6, watchdog="thread")
            for _ in range(12):
                async with lock:
                    await asyncio.sleep(0.195 + 0.001 * number)

        async with kept(0.6):
            await asyncio.gather(*(work(number) for number in range(10)))

    run(main)
    keys: list[Any] = [key for node in nodes(server) for key in node.operator.keys("aiolocks:lock:*")]
    assert [key for key in keys if not key.endswith(b":fence")] == []


@pytest.mark.rest
def test_a_lease_is_kept_while_its_session_begins_to_poll_and_stops(
    one_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread must not touch what belongs to the loop, which debug mode does not forgive."""

    async def main() -> None:
        rights = ("reset", "on", ">secret", "~*", "+@all", "-subscribe", "&*")
        async with (
            Redis.from_url(one_server.url) as admin,
            Redis.from_url(one_server.url, username="deaf", password="secret") as deaf,
        ):
            acl: Any = admin.execute_command
            await acl("ACL", "SETUSER", "deaf", *rights)
            async with Lock(deaf, "kept", ttl=STEADY, watchdog="thread") as lease, Lock(admin, "awaited", ttl=20):
                waiting = asyncio.create_task(Lock(deaf, "awaited", ttl=20).acquire())
                await until(lambda: any(polling(deaf)))
                await asyncio.sleep(0.6 * STEADY)
                lease.check()
                await acl("ACL", "SETUSER", "deaf", "+subscribe")
                await until(lambda: not any(polling(deaf)))
                await asyncio.sleep(0.6 * STEADY)
                lease.check()
            await (await waiting).release()
            await acl("ACL", "DELUSER", "deaf")

    with asyncio.Runner(debug=True) as runner:
        runner.get_loop().slow_callback_duration = 60.0
        runner.run(main())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
