"""Locks of this library for programs that expect redis-py's.

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

from ._core.answers import REPLY_TIMEOUT
from ._core.errors import AcquireTimeoutError
from ._core.keys import Keys
from ._core.options import MIN_TTL, Options
from ._core.timing import deadline, margin
from ._engine.acquire import Acquisition
from ._engine.lease import Lease, state_of
from ._engine.lease_state import LeaseState, Validity
from ._engine.must_await import LOCKED, must_await
from ._engine.release import GRACE, RELEASE_TIMEOUT, Release
from ._engine.request import LONGEST_RETRY, Granted, Request
from ._grantors.one_server import RedisGrantor
from ._grantors.session import Session
from ._redis.clients import encoder_of, pool_of

__all__ = ["RedisLock"]

_DEFAULT_TTL = 30.0
"""TTL in seconds, renewed, for ``timeout=None``: redis-py holds such a lock until its release."""

_REPLY_TIME = 0.02
"""Maximum time in seconds that the last reply gets out of the caller's time to wait."""


@final
class _Chosen(bytes):
    """A token that the caller chose. It is compared by identity, because several leases of a session may have it."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@final
class RedisLock(PlainLock):
    """redis-py's `Lock` with a queue: waiters are woken in order, and a request that is sent twice does no harm.

    Constructor, methods, return values and errors are the same as in `redis.asyncio.lock.Lock`. The key is exactly
    *name* and its value is the token. So this lock and redis-py's exclude each other, and a program can change from one
    to the other process by process. (Waiters of one kind find a release by the other kind by asking again, within 0.1
    to 0.5 s, in no order.)

    With ``timeout=None`` a lease of 30 s is renewed while this process and this object live. redis-py would hold the
    lock for ever. A cancelled `acquire` holds nothing. `sleep` is used only for a `timeout` under 0.1 s. Further keys
    begin with ``aiolocks:exact:`` and expire by themselves.

    This class has no fencing tokens and stops no body. `aiolocks.Lock` does both.

    Args:
        redis: Any `redis.asyncio.Redis` or `RedisCluster`.
        name: The key.
        timeout: Seconds that the lock is held, without renewal, unless `extend` is called. None holds it until it is
            released.
        sleep: Seconds between attempts; see above.
        blocking: Default for `acquire`: whether it waits.
        blocking_timeout: Default for `acquire`: seconds to wait. None waits for ever.
        thread_local: Whether each thread sees only the token that it acquired itself.
        raise_on_release_error: Whether the end of a block raises `LockNotOwnedError` or logs it.

    Raises:
        TypeError: The client cannot be used by this library.
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
        """Return True once the lock is acquired, or False if it is still held after the time to wait.

        Args:
            blocking: False asks once. None uses the constructor's value.
            blocking_timeout: Maximum number of seconds to wait; False is returned up to 20 ms earlier. None uses the
                constructor's value. Redis is always asked once, and has 10 s to answer that.
            token: Value for the key, without white space. It costs one more request, and any process that knows it can
                release the lock. None uses a random one.

        Raises:
            ValueError: The token has white space.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held or queued.
        """
        blocking = self.blocking if blocking is None else blocking
        wait = (self.blocking_timeout if blocking_timeout is None else blocking_timeout) if blocking else 0.0
        wait = (
            None if wait is None else max(wait, 0.0)
        )  # the caller's deadline may have passed: redis-py asks once then
        if blocking and self.timeout and self.timeout < MIN_TTL:  # too short to wait in a queue
            return bool(await super().acquire(blocking, wait, token))
        if wait:  # so that the last reply comes within the caller's time
            wait -= min(_REPLY_TIME, wait / 10, self.sleep / 2)
        chosen = None if token is None else self._encoded(token)
        try:
            lease = await self._acquire(chosen, wait)
        except RedisTimeoutError:
            if not wait:
                raise
            lease = await self._acquire(chosen, 0.0)  # redis-py asks once, however long that takes
        if lease is None:
            return False
        self.local.lease, self.local.token = lease, bytes(state_of(lease).request.token)
        return True

    @must_await(LOCKED)
    async def locked(self) -> bool:
        return bool(await super().locked())

    async def do_acquire(self, token: str | bytes) -> bool:
        """Ask once for the lock with this *token*. Return True if it was granted."""
        lease = await self._acquire(self._encoded(token), 0.0)
        if lease is None:
            return False
        self.local.lease = lease
        return True

    async def release(self) -> None:
        """Release the lock.

        Raises:
            LockError: It was not acquired by this object, or is released already.
            LockNotOwnedError: This object does not hold it any more.
            RedisError: Not confirmed within 10 s. The release is retried in the background; this may be called again.
        """
        token = self.local.token
        if token is None:
            raise LockError("Cannot release a lock that's not owned or is already unlocked.", lock_name=self._keys.name)
        try:
            await self.do_release(token)
        except LockNotOwnedError:
            self._clear_token(token)
            raise
        self._clear_token(token)

    async def do_release(self, expected_token: str | bytes) -> None:
        """Release the lock if *expected_token* holds it; see `release`.

        Raises:
            LockNotOwnedError: It does not.
            RedisError: Not confirmed within 10 s. The release is retried in the background.
        """
        token = self._encoded(expected_token)
        release = self._releasing.get(token)
        if release is None or release.done:
            release = self._releasing[token] = self._release(token)
        context_clock = Session.of(self._pool).context.clock
        try:
            until, over = context_clock() + RELEASE_TIMEOUT, False
            while not over:
                await asyncio.shield(release.wait(until))  # other tasks can wait for it too, and for a shorter time
                over = release.done or release.refused or context_clock() >= until
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
        assert self.timeout is not None  # `reacquire` checked it
        await self._expire(int(self.timeout * 1000), "reacquire")
        return True

    async def _acquire(self, token: bytes | None, wait: float | None) -> Lease | None:
        if token is not None and token.split() != [token]:
            raise ValueError("a token is one word without white space")
        grantor = Session.of(self._pool).grantor(self._keys)
        context, ttl = grantor.context, self.timeout or _DEFAULT_TTL
        options = self._options(renew=not self.timeout and token is None)
        asks = wait is None or wait > 0
        request = Request(int(ttl * 1000) / 1000, 1, asks, context.new_token())
        acquisition = Acquisition(context, grantor, self._keys.base, request, options, wait)
        try:
            lease = await acquisition.try_acquire(Lease)
        except AcquireTimeoutError:
            return None
        if lease is None or token is None:
            return lease
        return await self._rename(grantor, state_of(lease), _Chosen(token))

    async def _rename(self, grantor: RedisGrantor, state: LeaseState, chosen: bytes) -> Lease | None:
        """Replace the token of *state* by the caller's. Return None if the lease expired first.

        The request itself used a fresh token. With the caller's token, the server could take a second request for the
        first one sent again.
        """
        context, asked = state.context, state.request
        now = context.clock()
        held = Request(asked.terms.ttl, 1, False, chosen)
        held.was_reached()
        context.tokens[chosen] = held
        buried_ms = round(1000 * max(asked.terms.ttl, LONGEST_RETRY)) if asked.unanswered else 0
        until = min(state.validity.deadline, now + REPLY_TIMEOUT)
        granted = Granted(state.fence, state.validity.deadline - asked.terms.valid_for)
        state.hand_off(now)
        try:
            renamed = await grantor.ask_until(until, "rename", (asked.token, chosen, buried_ms))
        except BaseException as error:
            until = now + max(asked.undo_for, 1.0)

            def release_renamed(first: Release) -> None:
                if first.ended is True:  # it was not renamed, and cannot be now; another lease may have the token
                    context.forget(held)
                else:
                    context.undos.begin(grantor, held, until)

            release = context.undos.begin(grantor, asked, until, release_renamed)
            if not isinstance(error, GeneratorExit):  # a coroutine that is being closed must not wait
                await release.settle(context.clock() + min(GRACE, asked.terms.ttl))
            raise
        context.forget(asked)
        if not renamed:
            context.forget(held)
            return None
        options = self._options(renew=not self.timeout)
        validity = Validity(context, granted.valid_from, held.terms, now, options.max_hold)
        renewed = LeaseState(context, grantor, self._keys.base, held, options, granted.fence, validity)
        renewed.renew_from(now)
        return Lease(renewed)

    def _options(self, *, renew: bool) -> Options:
        return Options(ttl=float(max(self.timeout or _DEFAULT_TTL, MIN_TTL)), on_lost="flag", renew=renew)

    def _state(self, token: bytes) -> LeaseState | None:
        """Return the state of the lease with this *token*, if it was acquired here."""
        lease: Lease | None = getattr(self.local, "lease", None)
        state = None if lease is None else state_of(lease)
        return state if state is not None and bytes(state.request.token) == token and not state.context.closed else None

    def _release(self, token: bytes) -> Release:
        """Start to release it. The server decides whether it was held, by its own clock."""
        state = self._state(token)
        if state is not None:
            context, grantor, request = state.context, state.grantor, state.request
            now = context.clock()
            until = max(now + 1.0, state.validity.deadline + margin(state.ttl))
            state.end(now)
            state.released_elsewhere()
            return context.undos.begin(grantor, request, until, None, RELEASE_TIMEOUT)
        session = Session.of(self._pool)
        known = token in session.context.tokens  # acquired through another object
        request = Request(self.timeout or _DEFAULT_TTL, 1, False, token if known else _Chosen(token))
        request.was_reached()
        until = session.context.clock() + max(self.timeout or _DEFAULT_TTL, 1.0)
        return session.context.undos.begin(session.grantor(self._keys), request, until, None, RELEASE_TIMEOUT)

    async def _expire(self, ttl_ms: int | Literal[""], verb: str) -> int:
        """Set the remaining time, or with "" only ask for it; return it in ms. *verb* is for the error's text.

        Raises:
            LockNotOwnedError: The lock is not held by this token.
        """
        token = self._encoded(self.local.token)
        session, state = Session.of(self._pool), self._state(token)
        sent_at = session.context.clock()
        if state is not None and ttl_ms != "":
            state.validity.shorten(deadline(sent_at, ttl_ms / 1000))  # before asking: the reply may be lost
        left: int | None = await session.grantor(self._keys).ask("expire", (token, str(ttl_ms).encode()))
        if left is None or left == -1:
            raise LockNotOwnedError(f"Cannot {verb} a lock that's no longer owned", lock_name=self._keys.name)
        if state is not None and ttl_ms != "":
            state.validity.extend(deadline(sent_at, ttl_ms / 1000))
        return left

    def _clear_token(self, token: str | bytes) -> None:
        """Clear the released *token*, unless the next task that shares this object has set its own already."""
        if self.local.token == token:
            self.local.token = None

    def _encoded(self, token: str | bytes) -> bytes:
        encoded: bytes = encoder_of(self._pool).encode(token)
        return encoded
