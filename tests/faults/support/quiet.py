"""Programs that end in every way and at many moments: `python -m tests.faults.support.quiet HOW LOOP URL`.

They must print nothing. The exit status is 0 if each run ended as it should, and else 1 with a line that says how.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator

from aiolocks import Lease, LockManager

DELAYS = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.02, 0.05, 0.12, 1.2)
"""Seconds after which a run ends: while connecting, asking, queued, subscribing, renewing."""

TTL = 3.0

logging.getLogger("asyncio").addFilter(lambda record: "Executing" not in record.getMessage())  # the machine stood still

outliving: list[object] = []
"""What a program keeps until it ends: a lease that is dropped while its loop runs has a warning coming."""


class Planned(Exception):
    """What a run ends with when it is to end with an exception."""


@contextlib.contextmanager
def unless_closed() -> Iterator[None]:
    """Take the error that a manager's close raises in its waiters; asyncio prints an error that no program takes."""
    try:
        yield
    except RuntimeError as error:
        if "its LockManager is closed" not in str(error):
            raise


async def acquire_again(locks: LockManager, name: str) -> None:
    with unless_closed():
        await locks.lock(name).acquire()


async def hold_and_wait(locks: LockManager) -> None:
    """Have holders and waiters of one name, of permits and of several names, in blocks, until cancelled."""

    async def in_block(number: int) -> None:
        with unless_closed():
            async with locks.lock("quiet"):
                await asyncio.sleep(0.01 if number else 60)

    async def with_permit() -> None:
        with unless_closed():
            async with locks.semaphore("quiet", 2):
                await asyncio.sleep(60)

    async def of_several(acquirable: contextlib.AbstractAsyncContextManager[Lease]) -> None:
        with unless_closed():
            async with acquirable:
                await asyncio.sleep(60)

    names, path = locks.multilock(["quiet", "quiet 2"]), locks.hierarchical("quiet/row").write
    several = [of_several(each) for each in (names, path) for _ in range(2)]
    await asyncio.gather(*(in_block(number) for number in range(3)), *(with_permit() for _ in range(4)), *several)


async def leave_waiters_pending(locks: LockManager, delay: float) -> None:
    """Return from main while tasks hold and wait."""
    task = asyncio.create_task(hold_and_wait(locks))
    await asyncio.sleep(delay)
    assert not task.done()


async def leave_idle(locks: LockManager, delay: float) -> None:
    """Return from main after a block, while its session still stands by."""
    async with locks.lock("quiet"):
        await asyncio.sleep(delay)


async def leave_an_unawaited_release(locks: LockManager, delay: float) -> None:
    """Return from main right behind a block that did not wait for its release."""
    async with locks.lock("quietly left", ttl=30, wait_release=False):
        await asyncio.sleep(delay)


async def close_client(locks: LockManager, delay: float) -> None:
    """Close the user's client while tasks hold and wait."""
    task = asyncio.create_task(hold_and_wait(locks))
    await asyncio.sleep(delay)
    await locks.client.aclose()
    await asyncio.sleep(0.01)
    assert not task.done()


async def raise_in_block(locks: LockManager, delay: float) -> None:
    """Let an exception out of main from within a block, while others wait."""
    task = asyncio.create_task(hold_and_wait(locks))
    async with locks.semaphore("also quiet", 1):
        await asyncio.sleep(delay)
        assert not task.done()
        raise Planned


async def interrupt(locks: LockManager, delay: float) -> None:
    """Be sent SIGINT, as by Ctrl-C, while tasks hold and wait."""
    asyncio.get_running_loop().call_later(delay, os.kill, os.getpid(), signal.SIGINT)
    await hold_and_wait(locks)


async def cancel_main(locks: LockManager, delay: float) -> None:
    """Have main cancelled while it holds and waits."""
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().call_later(delay, main.cancel)
    async with locks.lock("also quiet"):
        await hold_and_wait(locks)


async def keep_leases_by_hand(locks: LockManager, delay: float) -> None:
    """Return from main with leases of which some are not released yet, while others are about to be granted."""
    leases: list[Lease] = [await locks.lock(f"by hand {number}").acquire() for number in range(4)]
    outliving.extend(asyncio.create_task(acquire_again(locks, lease.name)) for lease in leases)
    outliving.extend(asyncio.create_task(lease.release()) for lease in leases)
    await asyncio.sleep(delay)


Way = Callable[[LockManager, float], Awaitable[None]]

WAYS: dict[str, tuple[Way, type[BaseException] | None]] = {
    "leave_waiters_pending": (leave_waiters_pending, None), "leave_idle": (leave_idle, None),
    "leave_an_unawaited_release": (leave_an_unawaited_release, None), "close_client": (close_client, None),
    "raise_in_block": (raise_in_block, Planned), "interrupt": (interrupt, KeyboardInterrupt),
    "cancel_main": (cancel_main, asyncio.CancelledError), "keep_leases_by_hand": (keep_leases_by_hand, None),
}  # fmt: skip


def loop_factory(kind: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes a loop: plain, with eager tasks, or uvloop's."""

    def make() -> asyncio.AbstractEventLoop:
        if kind == "uvloop":
            import uvloop

            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        else:
            loop = asyncio.new_event_loop()
        if kind == "eager":
            loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # from 3.12
        return loop

    return make


def run(how: str, loop: str, url: str) -> str | None:
    """Run once per delay; return what went wrong, if anything did."""
    way, expected = WAYS[how]
    for delay in DELAYS:

        async def main(delay: float = delay) -> None:
            async with LockManager.from_url(url, ttl=TTL) as locks:
                await way(locks, delay)

        try:
            with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
                runner.run(main())
        except BaseException as error:
            if expected is None or not isinstance(error, expected):
                return f"{how} after {delay} s: ended with {error!r}"
        else:
            if expected is not None:
                return f"{how} after {delay} s: did not end with {expected.__name__}"
    return None


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
