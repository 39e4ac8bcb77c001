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
from tests.support.children import dies_with_us
from tests.support.inside import our_timers
from tests.support.primitives import (
    SHORT,
    SOON,
    Make,
    Row,
    as_a_stranger,
    exclusive_rows,
    until,
)

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


REPOSITORY = Path(__file__).parents[2]

PROGRAM = """
import asyncio, sys
from contextvars import Context
from aiolocks import LockManager

async def main(url, made, ending):
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is nobody's fault
    async with LockManager.from_url(url) as locks:
        ttl = 5 if url.startswith("memory:") else 0.8  # what is left in Redis has to end soon
        make = eval("lambda name: " + made, {"locks": locks, "ttl": ttl})
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
@pytest.mark.parametrize(
    "made", ["locks.multilock([name, name + '2'], ttl=ttl)", "locks.hierarchical('shop/' + name, ttl=ttl).write"]
)
@pytest.mark.parametrize(
    "ending", ["in the middle", "after its client", "after its leases", "by an error within a block"]
)
async def test_a_program_with_locks_of_several_names_may_end_at_any_moment_without_a_word(
    url: str, made: str, ending: str
) -> None:
    program = ("-X", "dev", "-c", PROGRAM, url, made, ending)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, stderr=asyncio.subprocess.PIPE, cwd=REPOSITORY, preexec_fn=dies_with_us()
    )
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:  # this test has taken too long
            process.kill()
    assert (process.returncode, said.decode()) == (7, "")
