"""The conformance table tests locks: it passes asyncio's own, and sees what is wrong with a broken one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.primitives import test_conformance as asking
from tests.primitives import test_conformance_cancellation as cancellation
from tests.support.lateness import TooLateError
from tests.support.of_asyncio import row_of_asyncio
from tests.support.primitives import Make

pytestmark = pytest.mark.asyncio

Promise = Callable[[Make], Coroutine[Any, Any, None]]


class Open(asyncio.Lock):
    """Keeps no task out."""

    async def acquire(self) -> Any:
        return True

    def release(self) -> None:
        pass


class LastFirst(asyncio.Semaphore):
    """Grants to the newest waiter."""

    def __init__(self) -> None:
        super().__init__(1)
        self._stack: list[asyncio.Future[None]] = []
        self._free = True

    def locked(self) -> bool:
        return not self._free

    async def acquire(self) -> Any:
        if self._free:
            self._free = False
        else:
            self._stack.append(turn := asyncio.get_running_loop().create_future())
            await turn
        return True

    def release(self) -> None:
        if self._stack:
            self._stack.pop().set_result(None)
        else:
            self._free = True


class Leaking(asyncio.Lock):
    """Stays taken when a body was cancelled."""

    def release(self) -> None:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            super().release()


PROMISES: dict[str, tuple[Callable[[], asyncio.Lock | asyncio.Semaphore], Promise]] = {
    "exclusion": (Open, asking.test_no_more_tasks_are_inside_at_once_than_there_are_places),
    "order": (LastFirst, asking.test_waiters_of_a_process_are_granted_in_the_order_of_asking),
    "a cancellation": (Leaking, cancellation.test_a_cancellation_stays_one),
    "locked": (Open, asking.test_locked_says_whether_all_places_are_taken),
}


@pytest.mark.parametrize("what", PROMISES)
async def test_the_table_sees_a_lock_that_breaks_a_promise_and_passes_one_that_keeps_it(what: str) -> None:
    broken, promise = PROMISES[what]
    client = Redis(port=1)
    await promise(Make(row_of_asyncio("asyncio.Lock", "lock", asyncio.Lock), client))
    with pytest.raises((AssertionError, TooLateError)):
        await promise(Make(row_of_asyncio("a broken lock", "lock", broken), client))
