"""A program that ends, however and whenever it does, prints nothing of ours and leaves nothing of ours behind."""

import asyncio
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockManager
from tests.faults.support.quiet import WAYS
from tests.faults.support.residue import connections, wait_until_only_residue
from tests.faults.support.suspended import WAYS as SUSPENDED
from tests.support.children import hear_signals
from tests.support.inside import our_timers
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.faults]

REPOSITORY = Path(__file__).parents[2]

without_uvloop = pytest.mark.skipif(not importlib.util.find_spec("uvloop"), reason="uvloop is not installed")
before_eager_tasks = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")

LOOPS = [
    "asyncio", pytest.param("uvloop", marks=without_uvloop), pytest.param("eager", marks=before_eager_tasks),
]  # fmt: skip


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, *arguments]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=REPOSITORY, preexec_fn=hear_signals, **pipes)


def output_of(program: "subprocess.Popen[str]") -> str:
    """Return all that *program* prints until it ends, and its exit status if that is not 0."""
    with program:
        try:
            printed, _ = program.communicate(timeout=50)
        finally:
            program.kill()
    return printed + (f"exit status {program.returncode}" if program.returncode else "")


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
    programs = {url: start(*command, url) for url in (server.url, "memory://")}
    assert {url: output_of(program) for url, program in programs.items()} == {server.url: "", "memory://": ""}

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
def test_a_program_that_closes_its_generators_early_goes_on_with_locks(
    server: RedisServer, when: str, loop: str
) -> None:
    """And keeps what it holds."""
    assert output_of(start("-X", "dev", "-W", "error", "-c", EARLY, server.url, when, loop)) == ""


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
    def printed(whose: str) -> str:
        return re.sub(r"0x[0-9a-f]+|fd=\d+", "", output_of(start("-c", BARE, server.url, whose, delay)))

    assert printed("ours") == printed("theirs")


INSIDE = """
import asyncio, gc, sys, weakref
from redis.asyncio import Redis
from aiolocks import Lock

client = Redis.from_url(sys.argv[1])
lock = Lock(client, "inside", ttl=0.6, on_lost=sys.argv[2])
there = weakref.WeakSet()

class Something:
    pass

async def inside(entered):
    something = Something()
    there.add(something)
    mine = Lock(client, "inside", ttl=0.6, on_lost=sys.argv[2]) if sys.argv[3] == "its own" else lock
    async with mine:
        entered.set_result(None)
        await asyncio.sleep(3600)

def close_loop():
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the task is the program's own
    entered = loop.create_future()
    task = loop.create_task(inside(entered))
    loop.run_until_complete(entered)
    loop.close()

async def goes_on():
    async with lock as lease:
        gc.collect()  # destroys the task, which leaves its block
        await asyncio.sleep(1)
        print("held" if lease.held else "not held")
    print("kept" if there else "gone")

close_loop()
gc.disable()
asyncio.run(goes_on())
"""


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
@pytest.mark.parametrize("lock", ["shared", "its own"])
def test_a_task_whose_loop_was_closed_inside_its_block_is_not_kept_and_ends_no_other_block(
    server: RedisServer, on_lost: str, lock: str
) -> None:
    printed = output_of(start("-W", "ignore", "-c", INSIDE, server.url, on_lost, lock))  # its client was not closed
    assert printed.splitlines() == ["held", "gone"]


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["redis", "memory"])
async def test_a_second_after_the_last_lease_and_waiter_there_is_no_task_connection_or_timer(
    redis: Redis, redis_url: str, where: str
) -> None:
    tasks_before = asyncio.all_tasks()
    connections_before = await connections(redis)
    async with LockManager.from_url(redis_url if where == "redis" else "memory://", ttl=2) as locks:

        async def work(number: int) -> None:
            async with locks.lock("busy"), locks.semaphore("busy", 2):
                await asyncio.sleep(0.01)

        await asyncio.gather(*(work(number) for number in range(20)))
        async with locks.lock("given up"):
            with pytest.raises(TimeoutError):
                await asyncio.create_task(locks.lock("given up").acquire(timeout=0.2))
    if where == "redis":
        assert len(await connections(redis)) > len(connections_before), "or this test looks at nothing"
        assert our_timers() != [], "or this test looks at nothing"
    await asyncio.sleep(1.0)
    assert not our_timers()
    assert asyncio.all_tasks() <= tasks_before
    assert await connections(redis) == connections_before


@pytest.mark.asyncio
async def test_a_second_after_its_last_lease_was_lost_a_block_still_open_keeps_no_connection(
    redis: Redis, redis_url: str
) -> None:
    connections_before = await connections(redis)
    async with Redis.from_url(redis_url) as client, Lock(client, "lost", ttl=0.5, on_lost="flag") as lease:
        await redis.delete("aiolocks:lock:{lost}")
        assert await lease.wait_lost()
        await asyncio.sleep(1.0)
        assert not our_timers()
        assert await connections(redis) == connections_before
