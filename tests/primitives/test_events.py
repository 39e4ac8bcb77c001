"""Every primitive x every way that an acquisition may go, on every server: what `aiolocks.events` tells of it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Literal

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, Lock
from aiolocks.events import Event, on_event
from tests.support.heard import Heard, hearing
from tests.support.lateness import TooLateError, measured_lag
from tests.support.network import until
from tests.support.primitives import SHORT, SOON, STEADY, Make, as_a_stranger, each_with_a_queue, queued
from tests.support.servers import RedisServer

Watchdog = Literal["task", "thread"]
both_watchdogs = pytest.mark.parametrize("watchdog", ["task", "thread"])

RENEWALS = ("renewed", "renewal_failed")
"""How many there are is a matter of time."""


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What happens while the test runs. Each event comes in the thread of the loop."""
    threads: set[int] = set()
    unsubscribe = on_event(lambda event: threads.add(threading.get_ident()))
    with hearing() as heard:
        yield heard
    unsubscribe()
    assert threads == {threading.get_ident()}


@asynccontextmanager
async def filled(make: Make) -> AsyncIterator[None]:
    """Have others hold all places."""
    leases = await make.fill()
    yield
    for lease in leases:
        await lease.release()


PRIMITIVES = {"write lock": "rwlock", "read lock": "rwlock", "row of a table": "hierarchy"}
"""What events call a row of the table, where that is not its own name."""


def of_one_lease(heard: Heard, lease: Lease, make: Make) -> None:
    """See that all has to do with one acquisition, and says of what."""
    assert {(event.name, event.acquisition) for event in heard} == {(make.called("orders"), heard[0].acquisition)}
    assert {event.primitive for event in heard} == {PRIMITIVES.get(make.id, make.id)}
    assert {event.fencing_token for event in heard} <= {0, lease.fencing_token}
    assert heard[0].acquisition > 0


async def test_a_block_and_a_lease_by_hand_are_acquired_and_released(make: Make, heard: Heard) -> None:
    async with make(ttl=STEADY) as lease:
        assert heard.kinds() == ["acquired"]
        await asyncio.sleep(0.05)
    assert heard.kinds(*RENEWALS) == ["acquired", "released"]
    of_one_lease(heard, lease, make)
    assert 0.05 <= heard.of("released")[0].seconds < 15
    heard.clear()
    lease = await make().acquire()
    assert await lease.release()
    assert not await lease.release()
    assert heard.kinds() == ["acquired", "released"]
    of_one_lease(heard, lease, make)


async def test_a_lease_whose_release_is_not_awaited_is_released_when_that_is_answered(make: Make, heard: Heard) -> None:
    async with make(wait_release=False):
        pass
    await until(lambda: bool(heard.of("released")))
    assert heard.kinds() == ["acquired", "released"]


async def test_one_attempt_that_finds_others_is_no_event(make: Make, heard: Heard) -> None:
    async with filled(make):
        heard.clear()
        assert await as_a_stranger(make().try_acquire()) is None
        assert not heard.kinds(*RENEWALS)


async def test_a_caller_that_never_gets_the_lock_has_timed_out(make: Make, heard: Heard) -> None:
    async with filled(make):
        heard.clear()
        with pytest.raises(AcquireTimeoutError):
            await as_a_stranger(make().acquire(timeout=SOON))
    heard = Heard(event for event in heard if event.kind != "released")
    assert heard.kinds(*RENEWALS) == ["waiting", "timed_out"]
    waiting, timed_out = heard.of("waiting")[0], heard.of("timed_out")[0]
    assert waiting.acquisition == timed_out.acquisition
    assert waiting.seconds < timed_out.seconds
    assert SOON <= timed_out.seconds < SOON + 15
    assert {event.name for event in (waiting, timed_out)} == {make.called("orders")}


async def test_a_waiter_waits_and_acquires(make: Make, heard: Heard) -> None:
    held = await make.fill()
    numbers = {event.acquisition for event in heard}
    heard.clear()
    waiter = as_a_stranger(make().acquire())
    await until(lambda: bool(heard.of("waiting")))
    for lease in held:
        await lease.release()
    await (await waiter).release()
    mine = Heard(event for event in heard if event.acquisition and event.acquisition not in numbers)
    assert mine.kinds(*RENEWALS) == ["waiting", "acquired", "released"]
    assert len({event.acquisition for event in mine}) == 1


@each_with_a_queue
async def test_a_release_that_hands_over_in_this_process_says_so(make: Make, heard: Heard) -> None:
    (held,) = await make.fill()
    waiter = as_a_stranger(make().acquire())
    await queued(make(), 1)
    heard.clear()
    await held.release()
    lease = await waiter
    kinds = heard.kinds(*RENEWALS)
    assert sorted(kinds) == ["acquired", "handed_over", "released"]
    assert kinds.index("handed_over") < kinds.index("acquired")
    assert 0 < heard.of("handed_over")[0].fencing_token <= lease.fencing_token  # a path's levels agree on one later
    await lease.release()


@pytest.mark.rest
@pytest.mark.real_time
@both_watchdogs
async def test_renewals_are_told(make: Make, heard: Heard, watchdog: Watchdog) -> None:
    async with measured_lag() as lag, make(ttl=STEADY, watchdog=watchdog) as lease:
        await until(lambda: bool(heard.of("renewed")))
    of_one_lease(heard, lease, make)
    if heard.of("endangered") and lag.worst > STEADY / 10:
        raise TooLateError("a renewal came after half of the TTL")
    assert heard.kinds(*RENEWALS) == ["acquired", "released"]
    assert 0 < heard.of("renewed")[0].seconds < 15


@both_watchdogs
async def test_a_loss_is_told_in_the_loop_of_the_lease(make: Make, heard: Heard, watchdog: Watchdog) -> None:
    with pytest.raises(LeaseLostError):
        async with make(ttl=SHORT, watchdog=watchdog) as lease:
            await make.take_away()
            await asyncio.sleep(20)
    assert heard.kinds(*RENEWALS) == ["acquired", "lost"]
    of_one_lease(heard, lease, make)


@pytest.mark.rest
def test_an_interrupted_listener_ends_the_renewal_of_no_lease_of_its_batch(server: RedisServer) -> None:
    async def hold() -> None:
        async with Redis.from_url(server.url) as client, measured_lag() as lag, AsyncExitStack() as stack:
            leases = [await stack.enter_async_context(Lock(client, str(name), ttl=STEADY)) for name in range(20)]
            await asyncio.sleep(STEADY * 1.5)
            if lag.worst < STEADY / 4:
                assert all(lease.held for lease in leases)

    def interrupt(event: Event) -> None:
        if event.kind == "renewed" and not interrupted:
            interrupted.append(event)
            raise KeyboardInterrupt

    interrupted = list[Event]()
    with asyncio.Runner() as runner, ExitStack() as stack:
        stack.callback(on_event(interrupt))
        holding = runner.get_loop().create_task(hold())
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(holding)
        runner.get_loop().run_until_complete(holding)
