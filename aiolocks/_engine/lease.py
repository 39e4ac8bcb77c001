"""The lease as its holder sees it: the right to act until a moment, and all that can be asked of it or done with it.

With `Hold`, the block that `hold()` returns.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import CoroutineType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, final

from .._core.answers import REPLY_TIMEOUT, ride_out
from .._core.doing import Doing
from .._core.guard_commands import Command, Reply
from .._core.hints import NameHints, entered_without_async
from .._core.options import UNSET, Duration, Unset, check_ttl
from .._core.timing import deadline
from .block import Block, as_coroutine, calling_frame, current_task
from .guard import guard
from .lease_state import LeaseState
from .release import LONGEST_RELEASE
from .request import resolve
from .validity import GONE_FROM_SERVER

log = logging.getLogger("aiolocks")


@final
class Lease(NameHints):
    """The right to act until a moment, renewed in the background until it is released.

    Got from `acquire()`, `try_acquire()` or an `async with` block. It belongs to no task: any may use or release it.
    `async with lease:` stops its body if the lease is lost, and releases it at the end.
    """

    __slots__ = ("__weakref__", "_body", "_state")

    def __init__(self, state: LeaseState) -> None:
        self._state = state
        self._body: Block | None = None

    @property
    def name(self) -> str:
        """What is held, as the caller named it."""
        return self._state.grantor.name

    @property
    def token(self) -> str:
        """The random token that proves who holds it. Keep it out of logs."""
        return self._state.request.token.decode()

    @property
    def fencing_token(self) -> int:
        """A number that grows with every grant of the name: hand it to the resource, which rejects smaller ones."""
        return self._state.fence

    @property
    def fencing_tokens(self) -> Mapping[str, int]:
        """The fencing token of each name: a `MultiLock` has several, and every other lease the one.

        Hand to each resource that of its own name.
        """
        state = self._state
        return state.grantor.fencing_tokens(state.request, state.fence)

    @property
    def held(self) -> bool:
        """Whether the lease is certainly valid now, by the clock. False once lost or released."""
        return self._state.held

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released, by the clock."""
        return self._state.lost

    def remaining(self) -> float:
        """Return the seconds of certain validity left by the local clock; 0.0 once lost or released."""
        state = self._state
        return max(state.deadline - state.context.clock(), 0.0) if not state.over else 0.0

    def check(self) -> None:
        """Return if the lease is held; cheap enough to call before every write.

        Raises:
            LeaseLostError: It was lost, or released.
        """
        self._state.check()

    async def wait_lost(self) -> bool:
        """Wait until the lease is over: True when it was lost, False when it was released. Cancelling is harmless."""
        await self._state.wait_over()
        return self._state.lost

    async def renew(self, ttl: Duration | None = None) -> bool:
        """Ask for *ttl* from now (its own TTL if left out); what was granted before is never shortened.

        Args:
            ttl: Seconds, or a timedelta.

        Returns:
            True if the server confirmed it; False if the lease is lost or was released.

        Raises:
            RedisError: Not confirmed. The lease goes on until its deadline. The same after a cancellation.
        """
        state = self._state
        ttl = round(check_ttl(state.request.ttl if ttl is None else ttl) * 1000) / 1000
        if not state.held:
            return False
        clock = state.context.clock
        until = min(state.deadline, clock() + REPLY_TIMEOUT)
        with Doing(f"renewing {state.what}"):
            sent_at = await ride_out(partial(_renewal, state, ttl), clock, until)
        if sent_at is None:
            state.lose(state.refused_as)
            return False
        state.validity.extend(deadline(sent_at, ttl))
        state.emit_if_held("renewed", clock() - sent_at)
        return state.held

    async def guard(self, *commands: Command) -> list[Reply]:
        """Send commands of your own, to be run together, atomically, and only if this is still the current lease::

            balance, _ = await lease.guard(("INCRBY", "account:42", -10), ("RPUSH", "log", "took 10"))

        Redis itself looks whether the lease is held when it runs them, so no pause and no late packet can let a former
        holder write. A request that is sent again, because its answer was lost, is carried out once.

        They run as in a Lua script. Keys are the caller's own: no prefix is added. Commands that wait, that belong to a
        connection or a transaction, or that run a script are refused; on a Cluster, so are keys in another slot than
        the lock's name. Guards of one lease follow one another.

        Of a lease that holds several names, or all levels of a path, each must be held; on a Cluster, names in
        different slots cannot guard. Nor can a `Redlock`: no one server knows whether a majority still has its lease.
        There, have what is written to compare `fencing_token`, or guard by a `Lock` on that server.

        Args:
            commands: Tuples of str, bytes, int and float, such as ``("SET", key, value)``; up to 4,000 words in all.

        Returns:
            What each command answered, as Redis says it (RESP 2), which is ``b"OK"``, an int, bytes, None, or a list.
            With `decode_responses`, str in place of bytes.

        Raises:
            TypeError, ValueError: Not such commands, or the lease of a `Redlock`. Nothing was sent.
            LeaseLostError: The lease was lost, or released. Nothing was written.
            ResponseError: One of them failed, and those behind it were not run. Those before it stay: Redis has no
                rollback.
            RedisError: Not confirmed while the lease lasted, or within 10 s: they may have been run, but once at most.
                The same after a cancellation.
        """
        return await guard(self._state, commands)

    async def release(self) -> bool:
        """Let go, so that the next waiter gets it; may be called again.

        Returns:
            True if this call ended a live lease; False if it was lost or already released.

        Raises:
            RedisError: Refused, or not confirmed within the TTL or 10 s. The lease is not renewed any more; the release
                goes on in the background, and the lease ends with its TTL at the latest.

        After a cancellation the release goes on in the background.
        """
        state = self._state
        now = state.context.clock()
        valid = state.end(now)
        state.unlist()
        release = state.release_on_server(now, LONGEST_RELEASE if valid else None)
        if not valid:
            return False
        if release is None or release.waited is None:  # others share the lease, so that there is nothing to wait for
            return True
        await release.waited
        try:
            ended = release.outcome()
        except Exception:  # the text is made only now, because it costs time
            with Doing(f"releasing {state.what}"):
                raise
        if ended is False:
            log.warning("%s", state.error(GONE_FROM_SERVER))
        return ended is not False  # None: an attempt whose answer was lost must have ended it

    async def hand_off(self, ttl: Duration | None = None) -> str:
        """Renew it, end it here, and return a text with which another process goes on: ``await lock.adopt(text)``.

        ::

            lease = await lock.try_acquire()  # in a web handler; None: it is busy
            await redis.lpush("jobs", await lease.hand_off(ttl=60))

        From then on nobody renews it, and it lasts *ttl* seconds or what was granted before, whichever is more. It must
        be adopted within that time, or it is free for the next waiter; nobody comes in between. This lease is over as
        if it had been released, also inside its block, which then ends without releasing anything.

        Whoever reads the text owns the lease: send it where you would send a password, and keep it out of logs.
        Commands that this lease guards are awaited first.

        Args:
            ttl: Seconds, or a timedelta; left out: the lease's own TTL.

        Raises:
            LeaseLostError: The lease is lost, or was released.
            RuntimeError: It is one of an `upgrade()`, or is being upgraded, or its task holds the `RLock` several
                times. It goes on as before.
            TypeError: It is of a `Redlock`. It goes on as before.
            RedisError: Not confirmed while the lease lasted, or within 10 s. The lease is released.

        After a cancellation the lease is released as well, in the background if need be.
        """
        with Doing(f"handing off {self._state.what}"):
            return await self._state.context.session.hand_off(self._state, ttl)

    def upgrade(self, *, timeout: Duration | Unset | None = UNSET) -> "Hold":
        """Return a block that holds alone what this lease of `RWLock.upgradeable` shares with readers.

        ::

            async with rw.upgradeable as lease:
                async with lease.upgrade(timeout=5) as alone:
                    ...

        It goes before all who wait, and lets no new readers in until those there have gone. Its lease is one of its
        own, with a fencing token larger than theirs. After the block this lease is what it was.

        Args:
            timeout: Seconds to wait for the readers. Left out: `acquire_timeout`. None waits for ever; 0 asks once.

        Raises:
            RuntimeError: At once: this is not a lease of `RWLock.upgradeable`; for two readers would wait for each
                other. On entering: this task is inside such a block, and would wait for itself.
            AcquireTimeoutError: On entering: readers stayed all the time; this lease is held all the same.
            LeaseLostError: On entering: this lease is lost, or was released. On leaving: the block's own lease was
                lost, and the body raised nothing of its own.
            RedisError: On entering: Redis could not be asked.

        After a cancellation this lease is held as before, and the upgrade is not waited for.
        """
        state = self._state
        if state.changes is None:
            raise RuntimeError(f"{state.what}: only a lease of RWLock's `upgradeable` can be upgraded")
        asking = state.changes.upgrade(state, timeout)
        return Hold(lambda: asking().acquire(Lease, must=True), state.what)

    async def downgrade(self) -> None:
        """Go on as a reader: others may read beside it from now on, and no other holder has written in between.

        For leases of `RWLock.write` and `RWLock.upgradeable`. Asking again is harmless.

        Raises:
            RuntimeError: It is a lease of something else, or of an `upgrade()`, which ends with its block.
            LeaseLostError: It is lost, or was released.
            RedisError: Not confirmed: take it for a read lease that may still keep others out. The same after a
                cancellation.
        """
        state = self._state
        if state.changes is None:
            raise RuntimeError(
                f"{state.what}: only leases of RWLock's `write` and `upgradeable` can be downgraded; one that was "
                "upgraded, by leaving its block"
            )
        await state.changes.downgrade(state)

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Enter a block whose body is stopped when the lease is lost.

        Raises:
            LeaseLostError: It is lost already, or was released.
            RuntimeError: A block with this lease is open already.
        """
        task = asyncio.current_task()  # in whichever task this is awaited
        # equivalent: constant, without a task nothing is cancelled
        return as_coroutine(self._enter(task, 0 if task is None else task.cancelling()))

    async def _enter(self, task: "asyncio.Task[Any] | None", before: int) -> "Lease":
        self.check()
        if self._state.entered:  # the inner block would release it under the outer one
            raise RuntimeError(f"a block with this lease of {self.name!r} is open already")
        self._body = Block(self, self._state, task, before)
        return self

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        body, self._body = self._body, None
        if body is None:
            raise RuntimeError(f"no block with this lease of {self.name!r} is open")
        return as_coroutine(body.leave(exc, calling_frame()))

    if not TYPE_CHECKING:  # type checkers know without it
        __enter__ = __exit__ = entered_without_async

    def __repr__(self) -> str:
        state = self._state
        status = "held" if state.held else "lost" if state.lost else "released"
        return f"<Lease {state.grantor.kind} {self.name!r} fencing_token={state.fence} {status}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # To drop a copy would have the lease lapse, as if it were the last that refers to it, while its body goes on.
        raise TypeError(
            "a lease has one holder, and cannot be copied or pickled; to go on with it in another process, send "
            "text = await lease.hand_off() there"
        )

    def __del__(self) -> None:
        try:
            state = self._state
        except AttributeError:  # it was never made whole
            return
        if not state.over and not state.context.closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                state.context.holdings.dropped(state)


async def _renewal(state: LeaseState, ttl: float) -> float | None:
    """Ask once to extend the lease; return when that left, or None where the lease is gone."""
    sent_at = state.context.clock()
    answer: asyncio.Future[bool] = state.context.loop.create_future()
    state.grantor.renew(state.request, ttl, partial(resolve, answer))
    return sent_at if await answer else None


def state_of(lease: Lease) -> LeaseState:
    """Return the engine's side of *lease*."""
    return lease._state


@final
class Hold:
    """`async with lock.hold(...)`: one acquisition and its block. Use it once at a time."""

    __slots__ = ("_body", "_in_use", "_of", "_take")

    def __init__(self, take: Callable[[], Coroutine[Any, Any, Lease]], of: object) -> None:
        """*of*: What is held, for `repr`."""
        self._take = take
        self._of = of
        self._in_use = False
        self._body: Block | None = None

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Wait for the lease, and raise, as `acquire` does; RuntimeError too if this object is in use."""
        if self._in_use:
            raise RuntimeError("this hold is in use already: call hold() again for another block")
        task = current_task()  # in whichever task this is awaited, see `asyncio.wait_for` before Python 3.12
        # equivalent: constant, without a task nothing is cancelled
        return as_coroutine(self._enter(task, 0 if task is None else task.cancelling()))

    async def _enter(self, task: "asyncio.Task[Any] | None", before: int) -> Lease:
        if self._in_use:
            raise RuntimeError("this hold is in use already: call hold() again for another block")
        self._in_use = True
        try:
            lease = await self._take()
            self._body = Block(lease, state_of(lease), task, before)
        finally:
            self._in_use = self._body is not None
        return lease

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        """Release the lease, within 1 s or what is left of it; an outer cancellation goes on afterwards.

        Raises:
            LeaseLostError: It was lost, `on_lost` is "cancel", and the body raised no exception of its own.
        """
        return self.leave(exc, calling_frame())

    def leave(self, exc: BaseException | None, frame: FrameType) -> "CoroutineType[Any, Any, None]":
        """End the block that *frame* leaves."""
        body, self._body = self._body, None
        if body is None:
            raise RuntimeError("this hold was left already")
        self._in_use = False
        return as_coroutine(body.leave(exc, frame))

    def __repr__(self) -> str:
        return f"<Hold of {self._of}>"

    if not TYPE_CHECKING:  # type checkers know without it

        def __await__(self):
            raise TypeError(
                "hold() returns a block: use `async with lock.hold(timeout=5) as lease:`; for a lease without a block, "
                "use `lease = await lock.acquire(timeout=5)`"
            )

        __enter__ = __exit__ = __await__
