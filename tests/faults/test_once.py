"""`Once` while replies are lost, Redis is away, and runners die, stand still, fork or end with their loop."""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from aiolocks import AcquireTimeoutError, LeaseLostError, LockManager, Once
from aiolocks.testing import FaultProxy
from tests.faults.support.programs import printed
from tests.faults.support.replacing import Servers, primary_of, replaced
from tests.support.clusters import ClusterSet
from tests.support.lateness import SLACK, assert_within
from tests.support.network import client_of
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer
from tests.support.workers import spawn

NAME, TTL = "rates", 2.0


class Work:
    """Counts its calls, and returns how many there were."""

    calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        await asyncio.sleep(0)
        return self.calls


@pytest.mark.parametrize("lost", [b"GET", b":kept", b"EVALSHA"])
async def test_a_reply_that_is_lost_runs_nothing_twice(proxy: FaultProxy, redis: Redis, lost: bytes) -> None:
    work = Work()
    async with LockManager.from_url(proxy.url, ttl=20) as locks:
        await locks.once("other", keep=0).run(Work())  # all is connected, and the scripts are loaded
        once = locks.once(NAME, keep=60)
        proxy.drop_next_reply(lost)
        assert await once.run(work) == 1
    assert await Once(redis, NAME, keep=60).run(work) == 1


async def test_the_reply_to_the_write_is_lost_and_the_outcome_is_kept_once(proxy: FaultProxy, redis: Redis) -> None:
    written = list[bytes]()

    def lose(request: bytes) -> None:
        if b"SET" in request and b":kept" in request:
            written.append(request)
            if len(written) == 1:
                proxy.drop_next_reply(b":kept")

    async with LockManager.from_url(proxy.url, ttl=20) as locks:
        await locks.once("other", keep=0).run(Work())  # the scripts are loaded, whose texts have these words
        proxy.on_request = lose
        assert await locks.once(NAME, keep=60).run(Work()) == 1
    assert len(written) == 2
    assert await Once(redis, NAME, keep=60).run(Work()) == 1


async def test_a_runner_that_is_cut_off_until_its_lease_ends_publishes_nothing(proxy: FaultProxy, redis: Redis) -> None:
    async def function() -> str:
        proxy.black_hole = True
        return "late"

    async with client_of(proxy) as client:
        once = Once(client, NAME, keep=60, ttl=TTL)
        cut_off, next_here = asyncio.create_task(once.run(function)), asyncio.create_task(once.run(Work()))
        with pytest.raises(LeaseLostError):
            await cut_off
        proxy.black_hole = False
        proxy.cut_all()
        assert await Once(redis, NAME, keep=60, ttl=TTL).run(Work()) == 1
        with suppress(RedisError):  # it asked while Redis was away
            assert await next_here == 1


async def test_without_redis_a_caller_gets_an_error_of_redis_py_and_never_busy(proxy: FaultProxy) -> None:
    work = Work()
    async with client_of(proxy) as client:
        once = Once(client, NAME, keep=60, ttl=TTL)
        proxy.black_hole = True
        began = time.monotonic()
        for error in await asyncio.gather(*(once.run(work, timeout=0.2) for _ in range(3)), return_exceptions=True):
            assert isinstance(error, RedisError)
            assert "did not answer" in str(error)
        assert_within(time.monotonic() - began, 0.2 + SLACK)
        proxy.refuse = True
        proxy.cut_all()
        with pytest.raises(RedisError):
            await once.run(work)
    assert work.calls == 0


async def test_many_names_at_once_cost_one_get_each_and_no_connection_of_the_clients_pool(proxy: FaultProxy) -> None:
    async with client_of(proxy, max_connections=1) as client:
        names, work, sent = [Once(client, f"{number}", keep=60) for number in range(100)], Work(), list[bytes]()
        values = await asyncio.gather(*(once.run(work) for once in names))
        proxy.on_request = sent.append
        assert await asyncio.gather(*(once.run(work) for once in names)) == values
        assert [b"\r\nGET\r\n" in request for request in sent].count(True) == work.calls == 100
        assert proxy.connections_total == 1


async def test_a_look_that_misses_what_the_lease_shows_is_tried_later(proxy: FaultProxy, server: RedisServer) -> None:
    attempts = list[object]()

    def show_it_under_the_lease_alone(request: bytes) -> None:
        if b"EXISTS" in request:
            attempts.append(server.operator.set("aiolocks:once:{rates}:kept", "1", ex=60))
        elif b"GET" in request:
            server.operator.flushdb()

    async with client_of(proxy) as client:
        await Once(client, "other", keep=0).run(Work())  # the scripts are loaded, whose texts have these words
        proxy.on_request = show_it_under_the_lease_alone
        with pytest.raises(AcquireTimeoutError):
            await Once(client, NAME, keep=60).run(Work(), timeout=1)
    assert 2 <= len(attempts) <= 25


@pytest.mark.parametrize("kind", [SentinelSet, ClusterSet])
async def test_an_outage_that_a_failover_ends_is_ridden_out(kind: Callable[[], Servers]) -> None:
    with kind() as servers:
        async with servers.client(retry=Retry(NoBackoff(), 0)) as client:
            once, old = Once(client, "orders", keep=60), primary_of(servers)
            await once.run(Work())
            outage = asyncio.create_task(replaced(servers, "killed"))
            while old.running:
                await asyncio.sleep(0.01)
            with pytest.raises(RedisError):
                await once.run(Work(), timeout=0)
            await asyncio.gather(once.run(Work()), once.outcome(), once.forget(), outage)


RUNNER = """
import asyncio, sys, time
from aiolocks import LeaseLostError, LockManager
async def main(url, seconds):
    async def function():
        print("runs", flush=True)
        await asyncio.sleep(float(seconds))
        return "first"
    async with LockManager.from_url(url, ttl=2) as locks:
        try:
            print(await locks.once("rates", keep=60).run(function), flush=True)
        except LeaseLostError:
            print("lost", flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_runner_that_stood_still_longer_than_its_lease_publishes_nothing(redis: Redis, redis_url: str) -> None:
    once = Once(redis, NAME, keep=60, ttl=TTL)
    with spawn("-c", RUNNER, redis_url, "0.5") as runner:
        assert await runner.says() == "runs"
        runner.stop()
        assert await once.run(Work()) == 1
        kept = await once.outcome()
        runner.go_on()
        assert await runner.says() == "lost"
    assert await once.outcome() == kept


ENDS = {
    "returns": ("task = asyncio.ensure_future(once.run(wait)); await began.wait()", ""),
    "exits": ("await once.run(lambda: ends(SystemExit(3)))", "exit status 3"),
    "interrupted": (
        "await once.run(lambda: ends(KeyboardInterrupt()))",
        r"Traceback((?!Traceback).)*\nKeyboardInterrupt\nexit status -2",
    ),
    "closes": ("task = asyncio.ensure_future(once.run(wait)); await began.wait(); return locks", ""),
}

PROGRAM = """
import asyncio, os, sys
from aiolocks import LockManager
began = asyncio.Event()
async def wait():
    began.set()
    await asyncio.sleep(60)
async def ends(error):
    raise error
async def forks():
    child = os.fork()
    if child == 0:
        return "child"
    await asyncio.to_thread(os.waitpid, child, 0)
    return "parent"
async def use(locks):
    once = locks.once("ends", keep=60)
    await once.forget()
    BODY
async def main(url):
    async with LockManager.from_url(url, ttl=20) as locks:
        await use(locks)
if sys.argv[2] == "closes":
    loop = asyncio.new_event_loop()
    locks = loop.run_until_complete(use(LockManager.from_url(sys.argv[1], ttl=20)))
    loop.close()
else:
    asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("how", ENDS)
async def test_a_program_ending_amid_a_run_prints_nothing_of_ours(redis: Redis, server: RedisServer, how: str) -> None:
    body, expected = ENDS[how]
    said = await asyncio.to_thread(printed, "-W", "error", "-c", PROGRAM.replace("BODY", body), server.url, how)
    assert re.fullmatch(expected, said, re.DOTALL), said
    # The lease of that one would end by itself.
    assert len(await Once(redis, "ends", keep=60).revoke(force=True)) == (1 if how == "closes" else 0)


async def test_a_fork_inside_the_function_publishes_nothing(server: RedisServer) -> None:
    """The child goes on with a copy of the loop, in which its lease is over."""
    body = """
    try:
        print(await once.run(forks), (await once.outcome()).value)
    except Exception as error:
        print(type(error).__name__, flush=True)
        os._exit(0)
"""
    program = PROGRAM.replace("    BODY", body)
    said = await asyncio.to_thread(printed, "-W", "error", "-c", program, server.url, "forks")
    assert sorted(said.split("\n")) == ["", "LeaseLostError", "parent parent"]
