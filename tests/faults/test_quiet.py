"""A program that ends, however and whenever it does, prints nothing of ours and leaves nothing of ours behind."""

import asyncio
import importlib.util
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.asyncio import Redis

from tests.faults.support.programs import printed
from tests.faults.support.quiet import WAYS
from tests.faults.support.residue import wait_until_only_residue
from tests.faults.support.suspended import WAYS as SUSPENDED
from tests.support.servers import RedisServer

without_uvloop = pytest.mark.skipif(not importlib.util.find_spec("uvloop"), reason="uvloop is not installed")
before_eager_tasks = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")

LOOPS = ["asyncio", pytest.param("uvloop", marks=without_uvloop), pytest.param("eager", marks=before_eager_tasks)]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", WAYS)
def test_a_program_that_ends_at_any_moment_prints_nothing(server: RedisServer, how: str, loop: str) -> None:
    ends_quietly(server, "quiet", how, loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", SUSPENDED)
def test_a_program_that_ends_with_generators_inside_locks_releases_them_and_prints_nothing(
    server: RedisServer, how: str, loop: str
) -> None:
    """`asyncio.run` closes all generators at once, and what ends our session is one of them."""
    ends_quietly(server, "suspended", how, loop)


def ends_quietly(server: RedisServer, program: str, *arguments: str) -> None:
    command = ("-X", "dev", "-W", "error", "-m", f"tests.faults.support.{program}", *arguments)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda url: printed(*command, url), (server.url, "memory://"))) == ["", ""]

    async def only_residue() -> None:
        async with Redis.from_url(server.url) as redis:
            await wait_until_only_residue(redis, within=2.0)

    asyncio.run(only_residue())


EARLY = """
import asyncio, sys
from redis.asyncio import Redis
from aiolocks import Lock

async def main(loop):
    async with Redis.from_url(sys.argv[1]) as redis:
        async with Lock(redis, "before"):
            pass
        if sys.argv[2] == "inside":
            async with Lock(redis, "around", ttl=1) as lease:
                await loop.shutdown_asyncgens()
                await asyncio.sleep(1.5)
                lease.check()
        await loop.shutdown_asyncgens()
        async with Lock(redis, "after"):
            pass
        return await Lock(redis, "at the end", ttl=1).acquire()

def factory():
    if sys.argv[3] == "uvloop":
        import uvloop
        return uvloop.new_event_loop()
    return asyncio.new_event_loop()

with asyncio.Runner(loop_factory=factory) as runner:
    runner.get_loop().slow_callback_duration = 60.0
    kept = runner.run(main(runner.get_loop()))
"""


@pytest.mark.parametrize("loop", LOOPS[:2])
@pytest.mark.parametrize("when", ["between", "inside"])
def test_a_program_that_closes_generators_early_goes_on_with_locks(server: RedisServer, when: str, loop: str) -> None:
    """And keeps what it holds."""
    assert printed("-X", "dev", "-W", "error", "-c", EARLY, server.url, when, loop) == ""


ADDRESSES = r"0x[0-9a-f]+|fd=\d+"

BARE = """
import asyncio, sys
from redis.asyncio import Redis
from aiolocks import Lock, Semaphore

async def begin(redis, ours):
    await redis.ping()
    if ours:
        held = await Lock(redis, "bare", ttl=1).acquire()
        tasks = [asyncio.ensure_future(Lock(redis, "bare", ttl=1).acquire()) for _ in range(3)]
        permit = await Semaphore(redis, "bare", 2, ttl=1).acquire()
        await asyncio.sleep(float(sys.argv[3]))
        for task in tasks:
            task.cancel()  # those are the program's own: asyncio would report them as pending
        await asyncio.wait(tasks)
        return held, permit

loop = asyncio.new_event_loop()
redis = Redis.from_url(sys.argv[1])
kept = loop.run_until_complete(begin(redis, sys.argv[2] == "ours"))
loop.close()
"""


@pytest.mark.parametrize("delay", ["0", "0.001", "0.01", "0.3"])
def test_a_bare_loop_close_prints_no_more_than_redis_pys_open_client_does(server: RedisServer, delay: str) -> None:
    ours, theirs = (printed("-c", BARE, server.url, whose, delay) for whose in ("ours", "theirs"))
    assert re.sub(ADDRESSES, "", ours) == re.sub(ADDRESSES, "", theirs)
