"""The lease as its holder sees it, and `Hold`, the block that `hold()` returns.

Neither keeps the state of a lease. The `LeaseState` does.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import CoroutineType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, final

from .._core.answers import REPLY_TIMEOUT, resolve, ride_out
from .._core.doing import Doing
from .._core.guard_commands import Command, Reply
from .._core.hints import NameHints, entered_without_async
from .._core.options import UNSET, Duration, Unset, check_ttl
from .._core.timing import deadline
from .._core.untyped import Coro
from .block import Block, as_coroutine, current_task, frame_left, left_by
from .guard import guard
from .lease_state import GONE_FROM_SERVER, LeaseHandle, LeaseState
from .note import change_note
from .release import RELEASE_TIMEOUT

log = logging.getLogger("aiolocks")


@final
class Lease(NameHints, LeaseHandle):
    """The right to act until a deadline, renewed in the background until it is released.

    `acquire()`, `try_acquire()` and `async with` blocks give it. Any task may use or release it.
    `async with lease:` cancels its body if the lease is lost, and releases the lease at the end.
    """

    __slots__ = ("_block",)

    def __init__(self, state: LeaseState) -> None:
        self._state = state
        self._block: Block | None = None

    @property
    def name(self) -> str:
        """The name that is held, as the caller gave it."""
        return self._state.grantor.name

    @property
    def token(self) -> str:
        """The random token that proves who holds the name. Keep it out of logs."""
        return self._state.request.token.decode()

    @property
    def fencing_token(self) -> int:
        """A number that grows with every grant of the name. Send it to the resource, which rejects smaller ones."""
        return self._state.fence

    @property
    def fencing_tokens(self) -> Mapping[str, int]:
        """The fencing token of each name. Only a `MultiLock` has several. Send each resource the one of its name."""
        state = self._state
        return state.grantor.fencing_tokens(state.request, state.fence)

    @property
    def held(self) -> bool:
        """Whether the lease is certainly valid now, by the local clock. False once lost or released."""
        return self._state.validity.held

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released, by the local clock."""
        return self._state.validity.lost

    def remaining(self) -> float:
        """Return the seconds of certain validity left, by the local clock. 0.0 once lost or released."""
        state = self._state
        return max(state.validity.deadline - state.context.clock(), 0.0) if not state.over else 0.0

    def check(self) -> None:
        """Return if the lease is held. Cheap enough to call before every write.

        After code that blocked the event loop, call it before the next write. The body is cancelled only at an await
        that suspends it, and that await can already have sent the write.

        Raises:
            LeaseLostError: It was lost, or released.
        """
        self._state.check()

    async def wait_lost(self) -> bool:
        """Wait until the lease is over. Return True if it was lost, False if released. Cancelling is harmless."""
        await self._state.wait_over()
        return self._state.validity.lost

    async def renew(self, ttl: Duration | None = None) -> bool:
        """Ask for *ttl* from now. A longer earlier grant is never shortened.

        Args:
            ttl: Seconds, or a timedelta. Left out: the lease's own TTL.

        Returns:
            True if the server confirmed it; False if the lease is lost or was released.

        Raises:
            RedisError: Not confirmed. The lease lasts until its deadline. The same after a cancellation.
        """
        state = self._state
        ttl = round(check_ttl(state.request.terms.ttl if ttl is None else ttl) * 1000) / 1000
        if not state.validity.held:
            return False
        clock = state.context.clock

        async def ask() -> float | None:
            sent_at = clock()
            answer: asyncio.Future[bool] = state.context.loop.create_future()
            state.grantor.renew(state.request, ttl, partial(resolve, answer))
            return sent_at if await answer else None

        until = min(state.validity.deadline, clock() + REPLY_TIMEOUT)
        with Doing(f"renewing {state.what}"):
            sent_at = await ride_out(ask, clock, until)
        if sent_at is None:
            state.lose(state.refused_as)
            return False
        state.validity.extend(deadline(sent_at, ttl))
        state.emit_if_held("renewed", clock() - sent_at)
        return state.validity.held

    async def guard(self, *commands: Command) -> list[Reply]:
        """Run commands of your own on the server, together and atomically, if this is still the current lease::

            balance, _ = await lease.guard(("INCRBY", "account:42", -10), ("RPUSH", "log", "took 10"))

        Redis itself checks the lease when it runs them, so no pause and no late packet lets a former holder write. A
        request that is sent again, because its reply was lost, runs once.

        They run as in a Lua script. Keys are the caller's own, without a prefix. Commands that block, that belong to a
        connection or a transaction, or that run a script are refused. On a Cluster, so are keys in another slot than
        the lock's name. Guards of one lease run one after the other.

        If the lease holds several names, or all levels of a path, each must be held. On a Cluster, names in different
        slots cannot guard. A `Redlock` cannot guard either, because no single server knows whether a majority still
        has its lease. There, let the resource compare `fencing_token`, or guard by a `Lock` on that server.

        Args:
            commands: Tuples of str, bytes, int and float, such as ``("SET", key, value)``. Up to 4,000 words in all.

        Returns:
            The reply to each command, as Redis gives it (RESP 2): ``b"OK"``, an int, bytes, None, or a list. With
            `decode_responses`, str in place of bytes.

        Raises:
            TypeError, ValueError: Not such commands, or the lease of a `Redlock`. Nothing was sent.
            LeaseLostError: The lease was lost, or released. Nothing was written.
            ResponseError: One of them failed, and the later ones were not run. The earlier ones stay, because Redis has
                no rollback.
            RedisError: Not confirmed while the lease lasted, or within 10 s. They may have run, at most once. The same
                after a cancellation.
        """
        return await guard(self._state, commands)

    async def note(self, text: str) -> None:
        """Say what the lease is for, or how far the work is: ``await lease.note("row 500 of 900")``.

        Other processes see it as `Holder.note`, and on the command line, 2 s later at the latest. It never delays the
        caller, never raises an error of Redis, and has no effect on the lease. Call it as often as you like:
        every 2 s at most, the newest note is written. Any reader of the Redis keys can see it, so keep secrets out.

        Args:
            text: It takes the place of the note before, and of the option `note`. It is cut to 200 characters. An empty
                text removes the note.

        Raises:
            TypeError: It is not a str.

        Nothing happens once the lease is over. Cancelling is harmless.
        """
        change_note(self._state, text)

    async def release(self) -> bool:
        """Release the lease, so that the next waiter gets it. Calling it again is harmless.

        A block releases its lease itself. After a call of `release` inside the block, the rest of the block runs
        without the lease.

        Returns:
            True if this call ended a live lease. False if it was lost or already released.

        Raises:
            RedisError: Refused, or not confirmed within the TTL or 10 s. The lease is no longer renewed. The release
                goes on in the background, and the lease ends with its TTL at the latest.

        After a cancellation the release goes on in the background.
        """
        state = self._state
        now = state.context.clock()
        valid = state.end(now)
        release = state.release_on_server(now, RELEASE_TIMEOUT if valid else None)  # first, as others wait for it
        state.unlist()
        if not valid:
            return False
        if release is None or release.waited is None:  # other holds share the lease, so there is nothing to wait for
            return True
        await release.waited
        if not release.done or release.trouble is not None:
            with Doing(f"releasing {state.what}"):
                release.outcome()  # raises
        ended = release.ended
        if ended is False:
            log.warning("%s", state.error(GONE_FROM_SERVER))
        return ended is not False  # P10: with None, an earlier try without a reply may have ended it

    async def hand_off(self, ttl: Duration | None = None) -> str:
        """Renew it, end it here, and return a text with which another process adopts it: ``await lock.adopt(text)``.

        ::

            lease = await lock.try_acquire()  # in a web handler; None: it is busy
            await redis.lpush("jobs", await lease.hand_off(ttl=60))

        From then on it is not renewed. It lasts *ttl* seconds, or as long as it was granted before if that is longer.
        If it is not adopted in that time, the next waiter gets it; no other caller comes in between. This lease is over
        as if it had been released, also inside its block, which then ends without a release. For a lease that lives
        from request to request, ``await lock.touch(text)`` extends it, and ``await lock.drop(text)`` ends it.

        Any reader of the text can adopt the lease, so send it as you would send a password, and keep it out of logs.
        Guards of this lease that are running are awaited first.

        Args:
            ttl: Seconds, or a timedelta. Left out: the lease's own TTL.

        Raises:
            LeaseLostError: The lease is lost, or was released.
            RuntimeError: It is one of an `upgrade()`, or is being upgraded, or its task holds the `RLock` several
                times. It lasts as before.
            TypeError: It is of a `Redlock`. It lasts as before.
            RedisError: Not confirmed while the lease lasted, or within 10 s. The lease is released.

        After a cancellation the lease is released too, in the background if necessary. If the cancellation arrives
        while this method still waits for a guard, nothing was sent, so the lease lasts as before.
        """
        with Doing(f"handing off {self._state.what}"):
            return await self._state.context.session.hand_off(self._state, ttl)

    def upgrade(self, *, timeout: Duration | Unset | None = UNSET) -> "Hold":
        """Return a block that holds exclusively the name that this lease of `RWLock.upgradeable` shares with readers.

        ::

            async with rw.upgradeable as lease:
                async with lease.upgrade(timeout=5) as alone:
                    ...

        It goes ahead of all waiters, and no new reader gets in until the present ones have gone. The block has a lease
        of its own, with a larger fencing token than theirs. After the block this lease is as before.

        Args:
            timeout: Seconds to wait for the readers. Left out: `acquire_timeout`. None waits for ever; 0 asks once.

        Raises:
            RuntimeError: At once if this is not a lease of `RWLock.upgradeable`, as two readers would wait for each
                other. On entering if this task is inside such a block, and would wait for itself.
            AcquireTimeoutError: On entering if readers stayed all the time. This lease is still held.
            LeaseLostError: On entering if this lease is lost, or was released. On leaving if the block's own lease was
                lost, and the body raised no exception of its own.
            RedisError: On entering if Redis could not be asked.

        After a cancellation this lease is held as before, and the upgrade does not wait any longer.
        """
        state = self._state
        if state.changes is None:
            raise RuntimeError(f"{state.what}: only a lease of RWLock's `upgradeable` can be upgraded")
        asking = state.changes.upgrade(state, timeout)
        return Hold(lambda: asking().acquire(Lease), state.what)

    async def downgrade(self) -> None:
        """Go on as a reader. From now on others can read too, and no other holder has written in between.

        For leases of `RWLock.write` and `RWLock.upgradeable`. Asking again is harmless.

        Raises:
            RuntimeError: It is a lease of another kind, or of an `upgrade()`, which ends with its block.
            LeaseLostError: It is lost, or was released.
            RedisError: Not confirmed. Treat it as a read lease that may still keep others out. The same after a
                cancellation.
        """
        state = self._state
        if state.changes is None:
            raise RuntimeError(
                f"{state.what}: only leases of RWLock's `write` and `upgradeable` can be downgraded; an upgraded "
                "one, by leaving its block"
            )
        await state.changes.downgrade(state)

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Enter a block whose body is cancelled when the lease is lost.

        Raises:
            LeaseLostError: It is lost already, or was released.
            RuntimeError: A block with this lease is open already.
        """
        block = Block(asyncio.current_task())  # it is this task's, also if another one awaits the coroutine
        return as_coroutine(self._enter(block))

    async def _enter(self, block: Block) -> "Lease":
        self.check()
        if self._state.entered:  # the inner block would release it under the outer one
            raise RuntimeError(f"a block with this lease of {self.name!r} is open already")
        block.open(self, self._state)
        self._block = block
        return self

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        block, self._block = self._block, None
        if block is None:
            raise RuntimeError(f"no block with this lease of {self.name!r} is open")
        return as_coroutine(left_by(block, exc, frame_left(exc)))

    if not TYPE_CHECKING:  # type checkers know without it
        __enter__ = __exit__ = entered_without_async

    def __repr__(self) -> str:
        state = self._state
        status = "held" if state.validity.held else "lost" if state.validity.lost else "released"
        return f"<Lease {state.grantor.kind} {self.name!r} fencing_token={state.fence} {status}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # A copy that is dropped would let the lease lapse, like a last reference, while the body goes on.
        raise TypeError(
            "a lease has one holder, and cannot be copied or pickled; to go on with it in another process, send "
            "text = await lease.hand_off() there"
        )


def state_of(lease: Lease) -> LeaseState:
    """Return the engine's side of *lease*."""
    return lease._state


@final
class Hold:
    """`async with lock.hold(...)`: one acquisition and its block. It can be used again once the block is left.

    Its state is `_in_use`, and `_block` while that is open. Invariant: it has one block at a time.
    """

    __slots__ = ("_acquire", "_block", "_in_use", "_of")

    def __init__(self, acquire: Callable[[], Coro[Lease]], of: object) -> None:
        """*of* is shown by `repr`."""
        self._acquire = acquire
        self._of = of
        self._in_use = False
        self._block: Block | None = None

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Acquire the lease as `acquire` does. Also raises RuntimeError if this object is in use."""
        self._check_free()
        # The block is this task's, also if another one awaits the coroutine: `asyncio.wait_for` before Python 3.12.
        return as_coroutine(self._enter(Block(current_task())))

    async def _enter(self, block: Block) -> Lease:
        self._check_free()
        self._in_use = True
        try:
            lease = await self._acquire()
            block.open(lease, state_of(lease))
            self._block = block
        finally:
            self._in_use = self._block is not None
        return lease

    def _check_free(self) -> None:
        if self._in_use:
            raise RuntimeError("this hold is in use already: call hold() again for another block")

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        """Release the lease. Wait for that up to 1 s, or until its end. An outer cancellation is passed on afterwards.

        Raises:
            LeaseLostError: It was lost, `on_lost` is "cancel", and the body raised no exception of its own.
        """
        return self.leave(exc, frame_left(exc))

    def leave(self, exc: BaseException | None, frame: FrameType | None) -> "CoroutineType[Any, Any, None]":
        """End the block; see `Block.leave`."""
        block, self._block = self._block, None
        if block is None:
            raise RuntimeError("this hold was left already")
        self._in_use = False
        return as_coroutine(left_by(block, exc, frame))

    def __repr__(self) -> str:
        return f"<Hold of {self._of}>"

    if not TYPE_CHECKING:  # type checkers know without it

        def __await__(self):
            raise TypeError(
                "hold() returns a block: use `async with lock.hold(timeout=5) as lease:`; for a lease without a block, "
                "use `lease = await lock.acquire(timeout=5)`"
            )

        __enter__ = __exit__ = __await__
