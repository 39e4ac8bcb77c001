"""The conformance table tests locks: it passes asyncio's own, and sees what is wrong with a broken one."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.primitives import test_conformance as asking
from tests.primitives import test_conformance_cancellation as cancellation
from tests.support.lateness import TooLateError
from tests.support.of_asyncio import OF_ASYNCIO, of_asyncio
from tests.support.primitives import Make, Row


class Open(asyncio.Lock):
    """Keeps no task out."""

    async def acquire(self) -> Any:
        return True

    def release(self) -> None:
        pass


class LastFirst(asyncio.Semaphore):
    """Turns its queue round at each release."""

    def __init__(self) -> None:
        super().__init__(1)

    def release(self) -> None:
        if self._waiters:
            self._waiters.reverse()
        super().release()


class Leaking(asyncio.Lock):
    """Stays taken when a body was cancelled."""

    def release(self) -> None:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            super().release()


PROMISES: dict[str, tuple[Any, Any]] = {
    "exclusion": (Open, asking.test_no_more_tasks_are_inside_at_once_than_there_are_places),
    "order": (LastFirst, asking.test_waiters_of_a_process_are_granted_in_the_order_of_asking),
    "a cancellation": (Leaking, cancellation.test_a_cancellation_stays_one),
    "locked": (Open, asking.test_locked_says_whether_all_places_are_taken),
}


@pytest.mark.parametrize("what", PROMISES)
async def test_the_table_sees_a_lock_that_breaks_a_promise_and_passes_one_that_keeps_it(what: str) -> None:
    broken, promise = PROMISES[what]
    client = Redis(port=1)
    await promise(Make(OF_ASYNCIO[0], client))
    with pytest.raises((AssertionError, TooLateError)):
        await promise(Make(Row("a broken lock", "lock", lambda *given: of_asyncio(broken, 1, *given)), client))
