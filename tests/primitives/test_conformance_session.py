"""Every primitive x every promise, on every server: what goes on behind, which nobody should have to know of."""

import asyncio
import logging
import traceback
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, LeaseLostError
from tests.support.inside import our_timers
from tests.support.primitives import SHORT, SOON, Make, Row, as_a_stranger, exclusive_rows, until


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
