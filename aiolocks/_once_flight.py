"""The callers of one name in one process: one read, one lease, one run and one outcome for all of them.

A task serves them, so cancelling one caller changes nothing for the others. It reads what is kept, waits for the lease,
runs the function of the first caller, its owner, and publishes what comes of it. "Those" are the callers that came
before, with the same fingerprint or without one.

    an outcome is kept                     all: its value. With another fingerprint: OutcomeMismatchError
    another process has run meanwhile      those: its value, or OnceFailedError
    the function returns                   the owner and those: its value
    the function raises, errors="share"    the owner: the exception. Those: a copy of it
    the function raises, errors="retry"    the owner: the exception. The next waiter runs
    other code cancels the function        the owner: CancelledError. The next waiter runs, as after a death
    its value cannot be written            the owner and those: its value, and one WARNING. Others run again
    the lease is lost before the write     the owner: LeaseLostError. Nothing is published, and the next waiter runs
    Redis cannot be asked, manager closed  those that asked through it: the error
    the last caller leaves                 the function is cancelled. An outcome that is being written stays
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast, final
from weakref import WeakValueDictionary

import anyio
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._core.background import background
from ._core.errors import AcquireTimeoutError, LeaseLostError, QueueFullError
from ._core.values import described
from ._engine.acquire import ASKED_BEFORE, ASKED_FROM
from ._engine.lease import Lease
from ._engine.release import GRACE
from ._once_outcome import Caller, Record, copied, failed_elsewhere, failure_of, is_outcome, mismatch

if TYPE_CHECKING:
    from ._once import Once

T = TypeVar("T")

Key = tuple[int, int, bytes]
"""Ids of loop and pool, and the base of the keys."""


class Phase(Enum):
    """What the task of a flight does."""

    LOOKING = "it reads what is kept"
    WAITING = "it waits for the lease, while another process may run"
    RUNNING = "it runs the function of the owner"
    PUBLISHING = "the function has ended, and its outcome is being written"


_MIN_PAUSE, _MAX_PAUSE = 0.05, 0.075
"""Shortest and longest interval between two reads while it waits for the lease, in seconds. A read is one GET. With
250 ms, the last of 48 processes had the outcome after 340 ms; with 75 ms, after 175 ms."""

inside: "ContextVar[tuple[tuple[Flight, Caller], ...]]" = ContextVar("aiolocks_once", default=())
"""Whose functions have called the running code."""


@coroutine
def _within(context: Context, called: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await *called*, and run each of its steps in *context*.

    A separate task for *called* could return in the same turn of the loop in which the flight's task is cancelled. The
    result would then be lost.
    """
    step: Callable[[], Any] = partial(called.send, None)
    try:
        while True:
            try:
                awaited = context.run(step)
            except StopIteration as end:
                return cast("T", end.value)
            try:
                step = partial(called.send, (yield awaited))
            except GeneratorExit:
                context.run(called.close)
                raise
            except BaseException as error:
                step = partial(called.throw, error)
    finally:
        del step  # an exception in it refers to this frame


async def _ask_holders(caller: Caller) -> None:
    """Ask who runs, for the error of *caller*; without an answer in time, it says less."""
    with contextlib.suppress(RedisError, OSError, TimeoutError, RuntimeError):  # the last if the manager is closed
        async with asyncio.timeout(ASKED_BEFORE + GRACE):
            caller.holders = await caller.once.holders()


@final
class Flight:
    """The callers of one name, and the task that serves them.

    Its state is `phase` and `_callers`. Invariant: a caller is in `_callers` until it has its answer or leaves, and
    the task runs while there is one.
    """

    def __init__(self, key: Key) -> None:
        self.phase = Phase.LOOKING
        self.key = key
        self._callers: dict[Caller, None] = {}
        self._owner: Caller | None = None
        self._arrival: asyncio.Future[None] | None = None
        """Done once a caller has come that was not read for."""
        self._task: asyncio.Task[None] | None = None

    async def wait(self, caller: Caller) -> Any:
        """Return the answer, or raise it. If *caller* leaves as the last one, end all work."""
        if caller.timeout == 0 and self.phase is not Phase.LOOKING:
            raise self._too_late(caller)
        self._callers[caller] = None
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        if caller.timeout:
            loop, asks = caller.answered.get_loop(), caller.timeout > ASKED_FROM
            at, call = loop.time() + caller.timeout, partial(self._time_over, caller)
            if asks:
                at, call = at - ASKED_BEFORE, partial(self._nearly_over, caller, at)
            caller.timer = loop.call_at(at, call)
        if self._task is None or self._task.done():
            self._task = background(self._serve())
        try:
            return await caller.answered
        except GeneratorExit:  # the coroutine is destroyed, perhaps after its loop
            if self._leave(caller):
                with contextlib.suppress(RuntimeError):
                    self._task.cancel()
            raise
        finally:
            caller.stop_timer()
            if self._leave(caller):
                await self._end(self._task)

    def _leave(self, caller: Caller) -> bool:
        """Forget *caller*, and return whether it was the last one and had not been served."""
        return self._callers.pop(caller, self) is None and not self._callers

    def _nearly_over(self, caller: Caller, end: float) -> None:
        """Ask who runs, and let the time of *caller* end at *end*."""
        caller.timer = caller.answered.get_loop().call_at(end, self._time_over, caller)
        _ = background(_ask_holders(caller))

    def _time_over(self, caller: Caller) -> None:
        caller.answer(error=self._too_late(caller))

    def _too_late(self, caller: Caller) -> Exception:
        name, timeout = caller.once.name, caller.timeout or 0.0
        if caller.seen is None and self.phase is Phase.LOOKING and timeout:
            return RedisTimeoutError(f"reading once {name!r}: Redis did not answer within {timeout:g} s")
        why = f"no outcome within {timeout:g} s" if timeout else "another caller is running"
        if caller.holders:
            why += f"; held by {described(caller.holders, datetime.now(UTC))}"
        text, left = f"once {name!r}: {why}", caller.once._ttl
        if caller.holders:
            left = min(left, caller.holders[0].remaining)  # a dead runner's lease is not renewed
        return AcquireTimeoutError(text, name=name, timeout=timeout, retry_after=left, holders=caller.holders)

    async def _end(self, task: "asyncio.Task[None]") -> None:
        """Cancel the task and wait for its end, as a caller that awaits its function would."""
        if flights.get(self.key) is self:
            del flights[self.key]  # a later caller must not share a run that is being cancelled
        cancelled: asyncio.CancelledError | None = None
        while self.phase is not Phase.PUBLISHING and not task.done():
            task.cancel()
            try:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([task])
            except asyncio.CancelledError as again:  # the caller is cancelled once more, and so is the function
                cancelled = again
        if cancelled is not None:
            raise cancelled

    async def _serve(self) -> None:
        """Serve the callers until none is left."""
        found = False
        try:
            while self._callers:
                once, found_before = next(iter(self._callers)).once, found
                try:
                    if not await self._look(once):
                        found = await self._attempt(once)
                        if found and found_before:  # twice, the outcome that the lease showed was gone when it was read
                            await asyncio.sleep(_MIN_PAUSE)
                except Exception as error:
                    self._refuse(once, error)
                finally:
                    self.phase, self._owner = Phase.LOOKING, None
        finally:
            for caller in self._callers:  # the loop ends, or other code has cancelled this task
                caller.stop_timer()
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    caller.answered.cancel()
            self._callers.clear()

    def _answer(self, caller: Caller, value: object = None, error: BaseException | None = None) -> None:
        self._callers.pop(caller, None)
        caller.answer(value, error)

    def _refuse(self, once: "Once", error: Exception) -> None:
        """Answer with *error*: the owner alone if its function was called, else all callers of the same manager."""
        closing, asked = once._primitive._closing, [self._owner] if self._owner is not None else []
        if not asked and not isinstance(error, LeaseLostError):  # after a loss before any function was called, go on
            asked = [caller for caller in self._callers if caller.once._primitive._closing is closing]
        if isinstance(error, QueueFullError):  # the bound is that of some callers
            asked = [caller for caller in asked if caller.once._primitive._options.max_waiting is not None]
        for caller in asked:
            self._answer(caller, error=error if caller is asked[0] else copied(error, caller.once.name))

    async def _look(self, once: "Once") -> bool:
        """Read, and answer the callers with what is there for them. Return whether that was all of them, or is kept."""
        callers = list(self._callers)  # callers that come from now on need another read
        record, kept = await once._store.read(at_once=all(caller.timeout == 0 for caller in callers))
        for caller in callers:
            if record is not None and (kept or record.fence > caller.newest_seen):
                self._answer_from(record, caller, kept=kept)
            caller.seen = 0 if record is None else record.fence
        return kept or not self._callers

    def _answer_from(self, record: Record, caller: Caller, *, kept: bool) -> None:
        name = caller.once.name
        if not caller.shares(record):
            if kept:
                self._answer(caller, error=mismatch(name))
        elif record.failure is not None:
            self._answer(caller, error=failed_elsewhere(name, record.failure))
        else:
            try:
                self._answer(caller, record.value(caller.once._loads))
            except Exception as error:
                error.add_note(f"once {name!r}: loads cannot read what is kept; await once.forget() removes it")
                self._answer(caller, error=error)

    async def _attempt(self, once: "Once") -> bool:
        """Acquire the lease once, and run. If another process has left an outcome meanwhile, return True instead."""
        self.phase = Phase.WAITING
        lease = await self._acquire(once)
        if lease is None:
            return False
        async with lease:
            kept, newest, now = await once._store.check(lease)
            owner = next((caller for caller in self._callers if not caller.answered.done()), None)
            found = kept or any(newest > caller.newest_seen for caller in self._callers)
            if owner is not None and not found:
                await self._run(owner, lease, now)
        return found

    async def _acquire(self, once: "Once") -> Lease | None:
        """Return the lease, or None if it is busy and the first caller does not wait for it."""
        first, *others = self._callers
        for caller in others:
            if caller.timeout == 0:
                self._answer(caller, error=self._too_late(caller))
        if first.timeout != 0:
            return await self._acquire_or_look(once)
        lease = await once._primitive.try_acquire()
        if lease is None:
            self._answer(first, error=self._too_late(first))
        return lease

    async def _acquire_or_look(self, once: "Once") -> Lease | None:
        """Return the lease, or None once all callers are served without it.

        It looks when a caller has come, and after each tenth of the time that it has waited. So a process ahead in the
        queue that is slow, or stands still, keeps no other from the outcome.
        """
        loop, leases = asyncio.get_running_loop(), list[Lease]()

        async def acquire() -> None:
            leases.append(await once._primitive.acquire(timeout=None))  # each caller has a timer of its own

        acquiring, began = background(acquire()), loop.time()
        try:
            self._arrival = loop.create_future()
            while self._callers and not acquiring.done():
                pause = min(max((loop.time() - began) / 10, _MIN_PAUSE), _MAX_PAUSE)
                await asyncio.wait([acquiring, self._arrival], timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if self._arrival.done():
                    self._arrival = loop.create_future()
                if not acquiring.done():
                    with contextlib.suppress(RedisError, OSError):  # `acquire` knows what can be ridden out
                        await self._look(once)
            acquiring.cancel()
            await asyncio.wait([acquiring])
        except (Exception, asyncio.CancelledError):
            acquiring.cancel()
            try:
                await asyncio.wait([acquiring])
            finally:  # a second cancellation may end the wait
                for lease in leases:
                    await lease.release()
            raise
        if not acquiring.cancelled():
            acquiring.result()
        return leases[0] if leases else None

    async def _call(self, owner: Caller) -> tuple[object, bytes]:
        inside.set((*inside.get(), (self, owner)))
        return await owner.once._call(owner.function)

    async def _run(self, owner: Caller, lease: Lease, now: float) -> None:
        """Run the function of *owner* under *lease*, and publish what comes of it. The server's clock shows *now*."""
        once, clock = owner.once, asyncio.get_running_loop().time
        owner.stop_timer()  # the timeout bounds the waiting, never the function
        self._owner, self.phase = owner, Phase.RUNNING
        began = clock()
        value: object = None
        payload, failed = b"", None
        try:
            value, payload = await _within(owner.context, self._call(owner))
        except (KeyboardInterrupt, SystemExit) as end:
            if owner.answered.done():
                raise
            self._answer(owner, error=end)  # the program ends in the owner's task
            return
        except BaseException as error:
            if not is_outcome(error, lease, once.name):
                raise
            if isinstance(error, asyncio.CancelledError):
                self._answer(owner, error=error)
                return
            failed = error
        self.phase = Phase.PUBLISHING
        callers = list(self._callers)  # callers that come from now on are later ones
        failure = None if failed is None else failure_of(failed)
        record = Record(lease.fencing_token, now + clock() - began, owner.fingerprint, failure, payload)
        kept = await once._store.publish(record, lease, shared=failed is None or once._shares_errors)
        for caller in callers:
            caller.seen = record.fence
            if caller is owner:
                self._answer(caller, value, failed)
            elif not caller.shares(record):
                if kept:
                    self._answer(caller, error=mismatch(caller.once.name))
            elif failed is None:
                self._answer(caller, value)
            elif once._shares_errors:
                self._answer(caller, error=copied(failed, caller.once.name))


flights: "WeakValueDictionary[Key, Flight]" = WeakValueDictionary()
"""A flight lives as long as its callers and its task, which keep their loop and pool alive."""


def flight_of(key: Key, name: str) -> Flight:
    """Return the flight of *key*.

    Raises:
        RuntimeError: Its function calls this, so it would wait for itself.
    """
    within = inside.get()
    if within and any(
        flight.key == key and flight._owner is owner and flight.phase is Phase.RUNNING for flight, owner in within
    ):
        raise RuntimeError(f"once {name!r}: its own function calls this, and would wait for itself")
    flight = flights.get(key)
    if flight is None:
        flight = flights[key] = Flight(key)
    return flight
