"""Every primitive x every promise, on every server: what goes on behind, which nobody should have to know of."""

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, LeaseLostError
from tests.support.cases import the_rest_slow
from tests.support.children import dies_with_us
from tests.support.clients import CHOSEN, client_at
from tests.support.clusters import ClusterSet, nodes
from tests.support.inside import our_timers
from tests.support.kinds import complete
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import (
    SHORT,
    SOON,
    STEADY,
    WITH_A_QUEUE,
    Make,
    Row,
    as_a_stranger,
    each_with_a_queue,
    exclusive_rows,
    queued,
    until,
)
from tests.support.servers import RedisServer

pytest_plugins = ["tests.support.table"]
pytestmark = pytest.mark.asyncio


@exclusive_rows
async def test_nothing_of_ours_is_left_a_second_after_the_last_lease_and_waiter(
    row: Row, client: Redis, connections: Callable[[], int]
) -> None:
    before = asyncio.all_tasks()
    async with row.make(client, "orders", ttl=5):
        with pytest.raises(AcquireTimeoutError):
            await as_a_stranger(row.make(client, "orders").acquire(timeout=SOON))
        assert connections() == row.connections

    async def nothing_left() -> bool:
        return not (asyncio.all_tasks() - before or our_timers() or connections())

    await until(nothing_left, within=1.0)


@each_with_a_queue
async def test_many_objects_around_clients_of_one_pool_share_two_connections(
    make: Make, connections: Callable[[], int]
) -> None:
    leases = [await make.beside(name=f"order {number}").acquire() for number in range(10)]
    waiters = [as_a_stranger(make.beside(name=f"order {number}").acquire()) for number in range(10)]
    for number in range(10):
        await queued(make(f"order {number}"), 1)
    assert connections() == 2
    for lease in leases:
        await lease.release()
    for waiter in waiters:
        await (await waiter).release()


@exclusive_rows
async def test_a_token_is_shown_nowhere(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.get_running_loop().set_debug(True)
    asyncio.get_running_loop().slow_callback_duration = 0.0  # log every callback
    caplog.set_level(logging.DEBUG)
    lease = await make(ttl=SHORT).acquire()
    shown = [repr(lease), str(lease)]
    with pytest.raises(AcquireTimeoutError) as busy:
        await as_a_stranger(make.beside().acquire(timeout=SOON))
    with pytest.raises(LeaseLostError) as lost:
        async with lease:
            await make.take_away()
            await asyncio.sleep(10)
    for error in (busy.value, lost.value):
        shown += [repr(error), *traceback.format_exception(error)]
    shown += [repr(lease), repr(make()), caplog.text]
    assert len(lease.token) >= 32
    assert not any(lease.token in text for text in shown)


PAUSED = 0.7
"""Seconds without an answer, more than a session outlives its last lease."""


def pause(server: RedisServer | ClusterSet) -> None:
    for node in nodes(server):
        node.operator.client_pause(int(1000 * PAUSED))


@pytest.mark.rest
async def test_an_acquire_is_answered_though_the_session_falls_idle_meanwhile(
    row: Row, redis: Redis, server: RedisServer
) -> None:
    lock = row.make(redis, "orders")
    async with lock:
        pass
    pause(server)
    async with in_time(PAUSED + SLACK * 0.2):
        lease = await lock.acquire()
    await lease.release()


@each_with_a_queue
@pytest.mark.parametrize(
    "settings",
    ["decode_responses=true", "protocol=2", "protocol=3", "max_connections=1", "health_check_interval=1", "db=1"],
)
async def test_a_client_may_be_configured_in_any_way(
    row: Row, redis_url: str, quick_sessions: None, settings: str
) -> None:
    if CHOSEN == "cluster" and settings == "db=1":
        pytest.skip("a Cluster has one database")
    async with client_at(f"{redis_url}?{settings}") as client:
        lock = row.make(client, "orders", ttl=STEADY)
        async with lock as lease:
            waiter = as_a_stranger(lock.acquire())
            await queued(lock, 1)
            assert await lease.renew() is True
        await (await waiter).release()
        assert await client.ping()


@pytest.mark.rest
async def test_a_lease_outlives_its_client(row: Row, redis_url: str, quick_sessions: None) -> None:
    async with client_at(redis_url) as client:
        lease = await row.make(client, "orders", ttl=STEADY).acquire()
    await asyncio.sleep(1.2 * STEADY)
    assert await lease.release() is True


REPOSITORY = Path(__file__).parents[2]

MADE = complete(
    {
        "lock": "locks.lock(name, ttl=0.5)",
        "rlock": "locks.rlock(name, ttl=0.5)",
        "multilock": "locks.multilock([name, name + '2', name + '3'], ttl=0.5)",
        "semaphore": "locks.semaphore(name, 1, ttl=0.5)",
        "write lock": "locks.rwlock(name, ttl=0.5).write",
        "row of a table": "locks.hierarchical('shop/table/' + name, ttl=0.5).write",
    },
    map(str, WITH_A_QUEUE),
)
"""How a program makes each row."""

PROGRAM = """
import asyncio, sys
from contextvars import Context
from aiolocks import LockManager

async def main(url, made, ending):
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is nobody's fault
    async with LockManager.from_url(url) as locks:
        make = eval("lambda name: " + made, {"locks": locks})
        held = await make("orders").acquire()
        waiter = asyncio.create_task(make("orders").acquire(), context=Context())
        for _ in range(1000):
            if (await make("orders").statistics()).waiting:
                break
            await asyncio.sleep(0.01)
        if ending == "by an error within a block":
            async with make("other"):
                sys.exit(7)
        if ending == "after its leases":
            await held.release()
            await (await waiter).release()
    if ending == "after its client":  # the wait has ended with the manager
        await asyncio.wait([waiter])
        assert "is closed" in str(waiter.exception())
    sys.exit(7)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.rest
@pytest.mark.real_time
@pytest.mark.parametrize("row", the_rest_slow(WITH_A_QUEUE, quick=1), ids=str, indirect=True)
@pytest.mark.parametrize(
    "ending", ["in the middle", "after its client", "after its leases", "by an error within a block"]
)
async def test_a_program_may_end_at_any_moment_without_a_word(row: Row, url: str, ending: str) -> None:
    program = ("-X", "dev", "-c", PROGRAM, url, MADE[row.id], ending)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, stderr=asyncio.subprocess.PIPE, cwd=REPOSITORY, preexec_fn=dies_with_us()
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:  # this test has taken too long
            process.kill()
    assert (process.returncode, said.decode()) == (7, "")
