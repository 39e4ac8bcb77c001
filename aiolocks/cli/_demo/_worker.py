"""A worker: acquires by its orders, works while it holds, and records its events."""

import asyncio
import logging
from typing import final

from redis.exceptions import RedisError

from ..._core.errors import LeaseLostError
from ..._engine.lease import Lease
from ..._manager import LockManager
from ..._primitives.lock import Lock
from ..._primitives.semaphore import Semaphore
from ._events import ASKED, FAILED, HELD, LEFT, LOST, RENEWED, STALLED, STOPPED, Event, Order, Record

_STEP = 0.01
"""Interval in seconds between checks of the lease by a body."""

_PULSE = 0.05
"""Interval in seconds between checks whether this process stalled."""


@final
class Worker:
    """One worker, with its own client and so its own session."""

    def __init__(self, name: str, url: str, record: Record) -> None:
        logging.getLogger("aiolocks").addHandler(logging.NullHandler())  # leases are lost on purpose
        self._name = name
        self._record = record
        self._locks = LockManager.from_url(url)
        self._end_body = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def begin(self, order: Order) -> None:
        """Start to work on *order*, after the one before has ended."""
        self._end_body.clear()
        self._work = asyncio.create_task(self._carry_out(order))

    def end_body(self) -> None:
        """End the running body, or else the next one."""
        self._end_body.set()

    async def close(self) -> None:
        """End at once, and release the lease."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        await self._locks.aclose()

    async def _carry_out(self, order: Order) -> None:
        what: Lock | Semaphore
        if order.limit:
            what = self._locks.semaphore(order.name, order.limit, ttl=order.ttl)
        else:
            what = self._locks.lock(order.name, ttl=order.ttl)
        for seconds in order.holds:
            self._note(ASKED, order)
            try:
                async with what as lease:
                    self._note(HELD, order, lease)
                    await self._body(order, lease, seconds)
            except LeaseLostError as error:
                self._record(Event.now(self._name, LOST, order.name, fence=error.fencing_token, note=error.reason))
            except (RedisError, OSError) as error:
                self._record(Event.now(self._name, FAILED, order.name, note=type(error).__name__))
                return

    async def _body(self, order: Order, lease: Lease, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        left = lease.remaining()
        try:
            while loop.time() < end and not self._end_body.is_set():
                await asyncio.sleep(_STEP)
                before, left = left, lease.remaining()
                if left > before:
                    self._note(RENEWED, order, lease)
        except asyncio.CancelledError:
            self._note(STOPPED, order, lease)
            raise
        self._note(LEFT, order, lease)

    def _note(self, event: str, order: Order, lease: Lease | None = None) -> None:
        self._record(Event.now(self._name, event, order.name, fence=lease.fencing_token if lease else 0))


async def feel_pulse(name: str, record: Record) -> None:
    """Record for ever when this process stalled: time bounds allow for that."""
    loop = asyncio.get_running_loop()
    while True:
        before = loop.time()
        await asyncio.sleep(_PULSE)
        late = loop.time() - before - _PULSE
        if late > _PULSE:
            record(Event.now(name, STALLED, seconds=late))
