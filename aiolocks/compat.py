"""Locks of this library where a program expects those of another.

`RedisLock` is for code written for redis-py's own `Lock`::

    from redis.asyncio import Redis

    from aiolocks.compat import RedisLock

    lock = redis.lock("orders:42", timeout=10, lock_class=RedisLock)
"""

import asyncio
from typing import Any, Literal, final

from redis.asyncio.lock import Lock as PlainLock
from redis.exceptions import LockError, LockNotOwnedError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._core.answers import LONGEST_WAIT
from ._core.errors import AcquireTimeoutError
from ._core.keys import Keys, holder_of
from ._core.options import SHORTEST_TTL, Options
from ._core.timing import deadline, margin
from ._engine.acquire import Acquisition
from ._engine.lease import Lease, state_of
from ._engine.lease_state import LeaseState
from ._engine.must_await import LOCKED, must_await
from ._engine.release import GRACE, RELEASE_TIMEOUT, Release
from ._engine.request import LONGEST_RETRY, Granted, Request
from ._grantors.one_server import RedisGrantor
from ._grantors.session import Session
from ._redis.clients import encoder_of, pool_of

__all__ = ["RedisLock"]

_UNLIMITED = 30.0
"""Seconds that a lease lasts, unless renewed, of a lock that redis-py would hold until its release."""


_LEEWAY = 0.02
"""Seconds for the last answer, before the caller's time is over."""


@final
class _Chosen(bytes):
    """A token of a caller's own, which several leases of one session may have: each is itself alone."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@final
class RedisLock(PlainLock):
    """redis-py's `Lock`, with waiters that are served in order and woken, and requests that may be sent twice.

    Constructor, methods, return values and errors are those of `redis.asyncio.lock.Lock`. The key is exactly *name* and
    holds the token alone, so that this lock and redis-py's exclude each other, and a program can change from one to the
    other process by process. (Both kinds find each other's release by asking again, in 0.1 to 0.5 s, in no order.)

    What differs: with ``timeout=None`` the lock is not held for ever, but for as long as this process and this object
    live: a lease of 30 s is renewed. A cancelled `acquire` leaves nothing held. `sleep` is only how often a lock with a
    `timeout` under 0.1 s is asked for. Beside the key there are others, which begin with ``aiolocks:exact:`` and end by
    themselves.

    It has no fencing tokens and stops no body; `aiolocks.Lock` does.

    Args:
        redis: Any `redis.asyncio.Redis` or `RedisCluster`.
        name: The key.
        timeout: Seconds that the lock is held unless `extend` is called, with no renewal; None: until it is released.
        sleep: Seconds; see above.
        blocking: Whether `acquire` waits when it is not told.
        blocking_timeout: Seconds that it waits; None: for ever.
        thread_local: Whether each thread sees only the token that it has acquired itself.
        raise_on_release_error: Whether the end of a block raises `LockNotOwnedError`; else it is logged.

    Raises:
        TypeError: A client that this library cannot use.
    """

    def __init__(self, redis: Any, name: str | bytes | memoryview, *args: Any, **keywords: Any) -> None:
        super().__init__(redis, name, *args, **keywords)
        self._pool = pool_of(redis)
        key = bytes(encoder_of(self._pool).encode(name))  # a memoryview stays one
        self._keys = Keys.exact(key, key.decode(errors="backslashreplace"))
        self._releasing: dict[bytes, Release] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._keys.name!r}>"

    @must_await("acquire() must be awaited: use `if await lock.acquire():`")
    async def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: str | bytes | None = None
    ) -> bool:
        """Return True once the lock is acquired, or False if it is not within the time to wait.

        Args:
            blocking: False asks once. Left out: the constructor's value.
            blocking_timeout: Seconds to wait at most; False comes up to 20 ms earlier. Left out: the constructor's
                value; None there waits for ever. Redis is asked once, however short the time is, and has 10 s to
                answer that.
            token: What to put into the key: without white space. It costs one more request, and any process that has
                it can release the lock. Left out: a fresh one that cannot be guessed.

        Raises:
            ValueError: Such a token.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held or queued.
        """
        blocking = self.blocking if blocking is None else blocking
        wait = (self.blocking_timeout if blocking_timeout is None else blocking_timeout) if blocking else 0.0
        wait = None if wait is None else max(wait, 0.0)  # of a deadline that has passed: redis-py asks once then
        if blocking and self.timeout and self.timeout < SHORTEST_TTL:  # too short for a place in a queue
            return bool(await super().acquire(blocking, wait, token))
        if wait:  # the most that the caller waits, so that the answer is there by then
            wait -= min(_LEEWAY, wait / 10, self.sleep / 2)
        chosen = None if token is None else self._encoded(token)
        try:
            lease = await self._take(chosen, wait)
        except RedisTimeoutError:
            if not wait:
                raise
            lease = await self._take(chosen, 0.0)  # redis-py asks once however long that takes, and so do we
        if lease is None:
            return False
        self.local.lease, self.local.token = lease, bytes(state_of(lease).request.token)
        return True

    @must_await(LOCKED)
    async def locked(self) -> bool:
        return bool(await super().locked())

    async def do_acquire(self, token: str | bytes) -> bool:
        """Ask once for the lock with this *token*, and say whether it was granted."""
        lease = await self._take(self._encoded(token), 0.0)
        if lease is None:
            return False
        self.local.lease = lease
        return True

    async def release(self) -> None:
        """Release the lock.

        Raises:
            LockError: It was not acquired by this object, or is released already.
            LockNotOwnedError: It is held no more.
            RedisError: Not confirmed within 10 s; it is repeated in the background, and may be asked for again.
        """
        token = self.local.token
        if token is None:
            raise LockError("Cannot release a lock that's not owned or is already unlocked.", lock_name=self._keys.name)
        try:
            await self.do_release(token)
        except LockNotOwnedError:
            self._forget(token)
            raise
        self._forget(token)

    async def do_release(self, expected_token: str | bytes) -> None:
        """Release the lock if *expected_token* holds it; see `release`.

        Raises:
            LockNotOwnedError: It does not.
            RedisError: Not confirmed within 10 s; it is repeated in the background.
        """
        token = self._encoded(expected_token)
        release = self._releasing.get(token)
        if release is None or release.done:
            release = self._releasing[token] = self._release(token)
        context_clock = Session.of(self._pool).context.clock
        try:
            await release.wait(context_clock() + RELEASE_TIMEOUT)
            ended = release.outcome()
        finally:
            if release.done:
                self._releasing.pop(token, None)
        if ended is False:
            raise LockNotOwnedError("Cannot release a lock that's no longer owned", lock_name=self._keys.name)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        ttl_ms = int(additional_time * 1000)
        if not replace_ttl:
            ttl_ms += await self._expire("", "extend")
        await self._expire(ttl_ms, "extend")
        return True

    async def do_reacquire(self) -> Literal[True]:
        assert self.timeout is not None  # `reacquire` has looked
        await self._expire(int(self.timeout * 1000), "reacquire")
        return True

    async def _take(self, token: bytes | None, wait: float | None) -> Lease | None:
        if token is not None and token.split() != [token]:
            raise ValueError("a token is one word without white space")
        grantor = Session.of(self._pool).grantor(self._keys)
        context, ttl = grantor.context, self.timeout or _UNLIMITED
        options = self._options(renew=not self.timeout and token is None)
        asks = wait is None or wait > 0
        request = Request(int(ttl * 1000) / 1000, 1, asks, context.new_token())
        acquisition = Acquisition(context, grantor, self._keys.base, request, options, wait, asyncio.current_task())
        try:
            lease = await acquisition.try_acquire(Lease)
        except AcquireTimeoutError:
            return None
        if lease is None or token is None:
            return lease
        return await self._rename(grantor, state_of(lease), _Chosen(token))

    async def _rename(self, grantor: RedisGrantor, state: LeaseState, chosen: bytes) -> Lease | None:
        """Put the caller's own token in place of that of *state*; None: its lease has run out before.

        Only here: of two requests by one token, the server could not tell the second from the first one sent again.
        """
        context, asked = state.context, state.request
        now = context.clock()
        held = Request(asked.ttl, 1, False, chosen)
        held.was_reached()
        context.tokens[chosen] = held
        buried_ms = round(1000 * max(asked.ttl, LONGEST_RETRY)) if asked.unanswered else 0
        keys = holder_of(self._keys.base), self._keys.part(b"t:" + asked.token)
        until = min(state.deadline, now + LONGEST_WAIT)
        granted = Granted(state.fence, state.deadline - asked.valid_for)
        state.hand_off(now)
        try:
            renamed = await grantor.ask_until(until, "rename", (asked.token, chosen, buried_ms), keys=keys)
        except BaseException as error:
            until = now + max(asked.undo_for, 1.0)

            def release_renamed(first: Release) -> None:
                if first.ended is True:  # it has not been renamed, and cannot be now; another may have that token
                    context.forget(held)
                else:
                    context.undo(grantor, held, until)

            release = context.undo(grantor, asked, until, release_renamed)
            if not isinstance(error, GeneratorExit):  # a coroutine that is being destroyed must not wait
                await release.settle(context.clock() + min(GRACE, asked.ttl))
            raise
        context.forget(asked)
        if not renamed:
            context.forget(held)
            return None
        options = self._options(renew=not self.timeout)
        renewed = LeaseState(context, grantor, self._keys.base, held, options, granted, now)
        renewed.renew_from(now)
        return Lease(renewed)

    def _options(self, *, renew: bool) -> Options:
        return Options(ttl=float(max(self.timeout or _UNLIMITED, SHORTEST_TTL)), on_lost="flag", renew=renew)

    def _state(self, token: bytes) -> LeaseState | None:
        """Return what is known of the lease with this *token*, if it was acquired here."""
        lease: Lease | None = getattr(self.local, "lease", None)
        state = None if lease is None else state_of(lease)
        return state if state is not None and bytes(state.request.token) == token and not state.context.closed else None

    def _release(self, token: bytes) -> Release:
        """Begin to release it. The server decides whether it was held: its clock is the one that counts here."""
        state = self._state(token)
        if state is not None:
            context, grantor, request = state.context, state.grantor, state.request
            now = context.clock()
            until = max(now + 1.0, state.deadline + margin(state.ttl))
            state.end(now)
            state.released_elsewhere()
            return context.undo(grantor, request, until, None, RELEASE_TIMEOUT)
        session = Session.of(self._pool)
        known = token in session.context.tokens  # acquired through another object
        request = Request(self.timeout or _UNLIMITED, 1, False, token if known else _Chosen(token))
        request.was_reached()
        until = session.context.clock() + max(self.timeout or _UNLIMITED, 1.0)
        return session.context.undo(session.grantor(self._keys), request, until, None, RELEASE_TIMEOUT)

    async def _expire(self, ttl_ms: int | Literal[""], verb: str) -> int:
        """Set for how long the lock is held, or only ask; return the milliseconds. *verb* is for the error's text.

        Raises:
            LockNotOwnedError: The lock is not held by this token.
        """
        token = self._encoded(self.local.token)
        session, state = Session.of(self._pool), self._state(token)
        sent_at = session.context.clock()
        if state is not None and ttl_ms != "":
            state.validity.shorten(
                deadline(sent_at, ttl_ms / 1000)
            )  # before the server is asked: it may be done, and no answer come
        left: int | None = await session.grantor(self._keys).ask("expire", (token, str(ttl_ms).encode()))
        if left is None or left == -1:
            raise LockNotOwnedError(f"Cannot {verb} a lock that's no longer owned", lock_name=self._keys.name)
        if state is not None and ttl_ms != "":
            state.validity.extend(deadline(sent_at, ttl_ms / 1000))
        return left

    def _forget(self, token: str | bytes) -> None:
        """Note that *token* is released. The next task that shares this is woken first: its own is there then."""
        if self.local.token == token:
            self.local.token = None

    def _encoded(self, token: str | bytes) -> bytes:
        encoded: bytes = encoder_of(self._pool).encode(token)
        return encoded
