"""One call of `Election.run`: the loop that stands for election, leads, and stands again.

The one rule: only the leader's own code, a wrong configuration or a cancellation ends the loop; an outage never does.

| state | event | next state |
| --- | --- | --- |
| STANDING | the lease is granted | LEADING: `lead` is called |
| | Redis cannot be asked | STANDING: asked again after a pause, one log line a minute |
| | a right is missing, or the password or the type of the key is wrong | ENDED: the error is raised |
| LEADING | the lease is lost | STANDING, once `lead` has ended, even if it returned a value |
| | `resign` is called | RESIGNING: `lead` is cancelled until it ends |
| | `lead` returns | ENDED: the lease is released, the value is returned |
| | `lead` raises | ENDED: the lease is released, the exception is raised |
| RESIGNING | `lead` returns, or ends by its cancellation | STANDING: the lease is released, the queue is joined again |
| | `lead` raises, or the lease is lost | as in LEADING |
| any | the task is cancelled | ENDED: `lead` is cancelled, the lease is released, or the queue is left |

`lead` runs in the task of the caller, inside the block of the lease, so a loss cancels it as it does any block. If
`lead` answers a loss by LeaseLostError, from `lease.check()` or from a lock inside, that is the same loss.
"""

import asyncio
import enum
import inspect
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TypeVar, cast, final

import anyio
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from ._core.answers import REPLY_TIMEOUT, WrongServerError
from ._core.errors import AcquireTimeoutError, LeaseLostError
from ._core.options import UNSET, Unset
from ._core.timing import Backoff
from ._engine.lease import Lease

T = TypeVar("T")

log = logging.getLogger("aiolocks.election")

_LOG_INTERVAL = 60.0
"""Interval between two log lines about an outage, in seconds."""

_FIRST_PAUSE, _MAX_PAUSE = 0.05, 0.5
"""Pauses between two attempts while Redis cannot be asked, in seconds. With the time of one attempt, a leader is
elected within a TTL and a second after an outage."""

_PERMANENT = (AuthenticationError, NoPermissionError, WrongServerError)


class State(enum.Enum):
    """Where the loop is; see the table above."""

    STANDING = "standing"
    LEADING = "leading"
    RESIGNING = "resigning"
    ENDED = "ended"


MOVES: Mapping[State, tuple[State, ...]] = {
    State.STANDING: (State.LEADING, State.ENDED),
    State.LEADING: (State.RESIGNING, State.STANDING, State.ENDED),
    State.RESIGNING: (State.STANDING, State.ENDED),
    State.ENDED: (),
}
"""Which state can follow which."""


@final
class Candidacy:
    """The loop, in the task that made it.

    Its state is `state`. Invariant: `lease` is set while it is LEADING or RESIGNING. `_scope` is around `lead` alone,
    so that `resign` cancels nothing else.
    """

    def __init__(self, name: str, acquire: Callable[[float | None], Awaitable[Lease]], ttl: float) -> None:
        """Stand in the election *name*. *acquire* waits so many seconds for its lease, which lasts *ttl* seconds."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an election runs in a task: asyncio.run(election.run(lead))")
        self.state = State.STANDING
        self.lease: Lease | None = None
        self._name = name
        self._acquire = acquire
        # The pauses of the client's own retries grow to seconds. So after an error, or a loss, which may be due to an
        # outage, an attempt may take half a TTL, so that the end of the outage is noticed in time.
        self._patience = min(ttl / 2, REPLY_TIMEOUT)
        self._timeout: float | None = None
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancellations = task.cancelling()
        self._pid = os.getpid()
        self._outage = Outage(name)
        self._scope = Scope()
        self._term_over = asyncio.Event()
        self.resigning = asyncio.Event()
        """Set once this term is to end by `resign`. Threads read it, as nothing can cancel them."""

    @property
    def alive(self) -> bool:
        """Whether it can go on. It cannot after its loop was closed, or in a fork of its process."""
        return not self._task.done() and not self._loop.is_closed() and self._pid == os.getpid()

    async def run(self, lead: Callable[[Lease], Awaitable[T]]) -> T:
        """Stand and lead until `lead` returns or raises; see `Election.run`."""
        try:
            while True:
                result = await self._serve(await self._stand(), lead)
                if result is not UNSET:
                    return result
                if self._task.cancelling() > self._cancellations:  # `lead` has swallowed it
                    from anyio.lowlevel import checkpoint_if_cancelled  # late, as importing it takes a millisecond

                    await checkpoint_if_cancelled()  # a scope catches only a cancellation of its own
                    raise asyncio.CancelledError
        finally:
            self._move(State.ENDED)

    async def resign(self, timeout: float | None) -> bool:
        """Cancel `lead`, and wait until it leads no more; see `Election.resign`."""
        lease, over = self.lease, self._term_over
        if lease is None or not lease.held or not self.alive:
            return False
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"election {self._name!r} runs in another event loop, where it has to resign")
        if self.state is State.LEADING:
            self._move(State.RESIGNING)
            self.resigning.set()
            self._scope.cancel()
        if asyncio.current_task() is self._task:
            return True
        try:
            async with asyncio.timeout(timeout):
                if not await lease.wait_lost():
                    await over.wait()  # until then the release may not have been confirmed
        except TimeoutError:
            raise AcquireTimeoutError(
                f"election {self._name!r}: `lead` has not ended {timeout or 0:g} s after its cancellation",
                name=self._name, timeout=timeout or 0.0, retry_after=None,
            ) from None  # fmt: skip
        return True

    async def _stand(self) -> Lease:
        """Wait until elected."""
        while True:
            try:
                lease = await self._acquire(self._timeout)
            except AcquireTimeoutError:  # Redis has answered that another process leads
                lease = None
            except (RedisError, OSError) as error:
                self._timeout = self._patience
                await self._outage.pause(error)
                continue
            self._outage.over()
            self._timeout = None
            if lease is not None:
                return lease

    async def _serve(self, lease: Lease, lead: Callable[[Lease], Awaitable[T]]) -> T | Unset:
        """Lead under *lease*. Return the result of *lead*, or UNSET if it did not lead until the end."""
        ended, result = False, cast("T | Unset", UNSET)
        self._move(State.LEADING, lease)
        self._scope, self._term_over, self.resigning = Scope(), asyncio.Event(), asyncio.Event()
        try:
            async with lease:
                with self._scope:
                    result = await _called(lead, lease)
                ended = True
                if self.state is State.RESIGNING or not lease.held:
                    result = UNSET
            self._move(State.STANDING)
        except (LeaseLostError, BaseExceptionGroup) as error:
            # Once `lead` has ended, the block can only report that the lease was gone. That is in the log.
            if not ended and not (lease.lost and _only_losses(error)):
                raise
            self._move(State.STANDING)
        finally:
            if lease.lost:
                self._timeout = self._patience
            if not self._loop.is_closed():
                self._term_over.set()
        return result

    def _move(self, state: State, lease: Lease | None = None) -> None:
        """Go on to *state*, with the *lease* of a new term."""
        if state not in MOVES[self.state]:
            raise RuntimeError(f"a candidacy that is {self.state.value} cannot become {state.value}")
        self.state = state
        if state is not State.RESIGNING:
            self.lease = lease


@final
class Scope:
    """An `anyio.CancelScope` that can also be left by the end of a coroutine whose loop is closed.

    Such a coroutine is destroyed outside its task, where anyio refuses to leave the scope.
    """

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._scope.cancel_called

    def cancel(self) -> None:
        """Cancel the block at its next await, and at each further one until it ends."""
        self._scope.cancel()

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return not isinstance(exc, GeneratorExit) and bool(self._scope.__exit__(exc_type, exc, traceback))


@final
class Outage:
    """The pauses and the log lines while Redis cannot be asked.

    Its state is `_backoff`, and the time from which the next line is due. Invariant: one line a minute at most, also
    if Redis comes and goes.
    """

    def __init__(self, name: str) -> None:
        """*name* is that of the election, for the log."""
        self._name = name
        self._backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE, jitter=0.5)
        self._next_line = -math.inf

    async def pause(self, error: Exception) -> None:
        """Wait before the next attempt. Raise *error* if no attempt can help."""
        if isinstance(error, _PERMANENT) or "WRONGTYPE" in str(error):
            raise error
        now = asyncio.get_running_loop().time()
        if now >= self._next_line:
            log.warning(
                "election %r: Redis cannot be asked, trying again: %s: %s", self._name, type(error).__name__, error
            )
            self._next_line = now + _LOG_INTERVAL
        await asyncio.sleep(self._backoff.failed())

    def over(self) -> None:
        """Note that Redis has answered."""
        self._backoff.reset()


async def _called(lead: Callable[[Lease], Awaitable[T]], lease: Lease) -> T:
    """Call *lead*, and await it."""
    made = lead(lease)
    given: object = made
    if not inspect.isawaitable(given):
        raise TypeError(f"lead must be a coroutine function (async def), not {lead!r}")
    return await made


def _only_losses(error: BaseException) -> bool:
    """Whether *error* reports lost leases and nothing else; a TaskGroup in `lead` makes a group of them."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_only_losses, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, LeaseLostError)
