"""What one connection pool and one event loop share: clock, commands, wake-ups, watchdog, and who holds what.

It begins with the first request and ends by itself half a second after the last lease and waiter are gone, and what
undoes them is answered.
"""

import asyncio
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, final

import anyio
from redis.exceptions import ConnectionError as RedisConnectionError

from ._commands import Commands
from ._grantor import RedisGrantor
from ._healing import Healing
from ._keys import Keys
from ._ledger import Ledger
from ._line import Line
from ._link import background
from ._loop_end import LAST_GRACE, at_loop_end, finish, last_releases
from ._options import Options
from ._patrol import Patrol
from ._replication import Replication
from ._request import Grantor, Request
from ._wakeups import Wakeups
from ._watchdog import Watchdog
from ._watchdog_thread import ThreadWatchdog
from ._withdrawal import Withdrawal

log = logging.getLogger("aiolocks")

IDLE = 0.5
"""Seconds that a session outlives its last lease and waiter, so that the next one finds it connected."""


lease_clock: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that go on while the machine is suspended, as the leases on the server do."""


@final
class Session:
    """See the module. Make none yourself: `Session.of(pool)`."""

    clock: Callable[[], float] = staticmethod(lease_clock)

    def __init__(self, pool: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.pool = pool
        self.loop = loop
        self.id = os.urandom(12).hex().encode()
        self.polling = False
        self.closed = False
        self.foreign = False
        """This process is a fork of the one that the session belongs to."""
        self.commands = Commands(pool, loop, self.clock, self._link_lost)
        self.watchdog = Watchdog(loop, self.clock)
        self._thread_watchdog: ThreadWatchdog | None = None
        self.replication = Replication(pool, loop, self.clock)
        self.wakeups = Wakeups(
            pool, loop, self.clock, on_grant=self.deliver, on_subscribed=self._subscribed, on_forbidden=self._forbidden
        )
        self.healing = Healing(self)
        self.ledger = Ledger(self.touch)
        self.lines: dict[Line, None] = {}
        """Where somebody waits."""
        self.tokens: dict[bytes, Request] = {}
        """Requests and leases, from before the first byte leaves until they are undone."""
        self.withdrawing: dict[bytes, Withdrawal] = {}
        self._grantors: weakref.WeakValueDictionary[bytes, RedisGrantor] = weakref.WeakValueDictionary()
        self.waits = Patrol(loop, self.clock, lambda: self.withdrawing.values(), Withdrawal.wake)
        """Who waits for an undo, and until when at most."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_used = 0.0
        self._questions = 0
        self.new_token: Callable[[], bytes] = partial(next, _tokens())
        """Returns 128 random bits, in hex."""
        self._at_exit = at_loop_end(self._loop_ends)
        anyio.CancelScope()  # the first one imports a good deal, which must not eat from a lease that is running

    @staticmethod
    def of(pool: Any) -> "Session":
        """Return the session of *pool* in the running loop, begun if need be.

        Raises:
            RuntimeError: No asyncio loop is running here.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(_NO_LOOP) from None
        session = _sessions.get((id(pool), loop))
        if session is None:
            for key, other in list(_sessions.items()):
                if other.loop.is_closed() and _sessions.pop(key, None) is other:  # another thread may look as well
                    other._abandon()
            session = _sessions[id(pool), loop] = Session(pool, loop)
        return session

    @staticmethod
    def find(pool: Any) -> "Session | None":
        """Return the session of *pool* in the running loop, if it has begun.

        Raises:
            RuntimeError: No asyncio loop is running here.
        """
        if no_loop_runs():
            raise RuntimeError(_NO_LOOP)
        return _sessions.get((id(pool), asyncio.get_running_loop()))

    def runs(self) -> bool:
        """Whether it is the session of the running loop, and has not ended."""
        try:
            return asyncio.get_running_loop() is self.loop and not self.closed
        except RuntimeError:
            return False

    def keeper(self, options: Options) -> Watchdog | ThreadWatchdog:
        """Return who renews leases with these options."""
        if options.watchdog == "task":
            return self.watchdog
        if self._thread_watchdog is None:
            self._thread_watchdog = ThreadWatchdog(self.pool, self.loop, self.clock)
        return self._thread_watchdog

    def grantor(self, keys: Keys) -> RedisGrantor:
        grantor = self._grantors.get(keys.base)
        if grantor is None:
            grantor = self._grantors[keys.base] = RedisGrantor(self, keys)
        return grantor

    def forget(self, request: Request) -> None:
        self.tokens.pop(request.token, None)
        for part in request.parts:
            part.grantor.session.forget(part.request)
        if not self.tokens:
            self.touch()

    @contextlib.contextmanager
    def question(self) -> Generator[None, None, None]:
        """Keep the session while somebody waits for an answer that has to do with no lease."""
        self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1
            self.touch()

    def touch(self) -> None:
        """End the session when nothing has been held or awaited for a while from now."""
        if self.tokens:
            return
        self._last_used = self.clock()
        if self._idle_timer is None and not self.loop.is_closed():
            self._idle_timer = self.loop.call_later(IDLE, self._idle)

    def deliver(self, token: bytes, fence: int, amount: int, base: bytes) -> None:
        """Take a grant (or refusal) that was addressed to this session."""
        grantor = self._grantors.get(base)
        if grantor is not None:
            grantor.told(token, fence, amount)

    def pass_on(self, grantor: Grantor, token: bytes, ttl: float) -> None:
        """Give back a lease that nobody here wants: at once, rather than when it expires."""
        if token not in self.withdrawing:
            stray = Request(ttl, 1, wait=False, token=token)
            stray.reached = True
            Withdrawal(self, grantor, stray, self.clock() + ttl)

    def withdraw(
        self, grantor: Grantor, request: Request, until: float, then: Callable[[Withdrawal], None] | None = None
    ) -> Withdrawal:
        """Undo a request or lease; its token is nobody's from now on. *then* is called when that is done."""
        withdrawal = Withdrawal(self, grantor, request, until, then)
        self.forget(request)
        return withdrawal

    def poll(self, why: str, *, rights: bool) -> None:
        """Stop relying on wake-ups for a while: ask for turns that wait to be found. It may be for want of *rights*."""
        if self.polling:
            return
        self.polling = True
        pause = self.healing.begin(rights=rights)
        if self.pool not in _warned:
            _warned.add(self.pool)
            log.warning(
                "waiters of this client poll for their turn, as they cannot be woken: %s; subscribing is tried again "
                "in %g s, and less often if that fails",
                why, pause,
            )  # fmt: skip
        self.wakeups.close()
        self._recheck_all()

    def stop_polling(self) -> None:
        """Rely on wake-ups again."""
        self.polling = False
        log.info("waiters of this client are woken again when it is their turn")
        self._recheck_all()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run *coroutine* in the background; it ends with the session."""
        task = background(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _abandon(self) -> None:
        """Keep no task alive: the loop was closed under them, and a primitive may remember this session for long."""
        self.ledger.close()
        self.watchdog.close()

    def _rest(self) -> None:
        """Keep the books of blocks whose leases were lost, but no connection for them.

        Whoever waits for an undo still does, and until when at most.
        """
        self._end_thread()
        self.wakeups.close()
        self.commands.close()
        self.replication.commands.close()

    def _end_thread(self) -> None:
        if self._thread_watchdog is not None:
            self._thread_watchdog.close()

    def forked(self) -> None:
        """In a forked child: its copies of the leases are the parent's alone."""
        self.closed = self.foreign = True
        for owner in (self.commands, self.wakeups, self.replication.commands, self._thread_watchdog):
            if owner is not None:
                owner.let_go()

    def close(self) -> None:
        """End everything at once. Leases that are still held run out."""
        self.closed = True
        if _sessions.get((id(self.pool), self.loop)) is self:
            del _sessions[id(self.pool), self.loop]
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        error = RedisConnectionError("the session has ended")
        self.ledger.close()
        self.watchdog.close()
        self._end_thread()
        for line in list(self.lines):
            line.stop(error)
        for withdrawal in list(self.withdrawing.values()):
            withdrawal.finish(withdrawal.trouble or error)
        for task in list(self._tasks):
            task.cancel()
        self.waits.close()
        self.wakeups.close()
        self.commands.close()
        self.replication.commands.close()
        finish(self._at_exit)

    async def _loop_ends(self) -> None:
        """End with the loop, once what can be released is; or go on if only its generators were closed."""
        if self.closed:
            return
        await last_releases(lambda: bool(self.tokens) and not self._in_use(), self._unanswered)
        if self._in_use():
            self._at_exit = at_loop_end(self._loop_ends)
        else:
            self.close()

    def _in_use(self) -> bool:
        return bool(self.lines) or self.ledger.running()

    def _unanswered(self) -> bool:
        """Whether something is being undone, and has been for a moment only."""
        recently = self.clock() - LAST_GRACE
        return any(withdrawal.begun > recently for withdrawal in self.withdrawing.values())

    def _idle(self) -> None:
        self._idle_timer = None
        if self.tokens or self.closed:
            return
        now = self.clock()
        if self._questions or any(withdrawal.keeps_session(now) for withdrawal in self.withdrawing.values()):
            self.touch()
            return
        quiet = now - self._last_used
        if quiet + 0.001 < IDLE:
            self._idle_timer = self.loop.call_later(IDLE - quiet, self._idle)
        elif self.ledger.in_use():
            self._rest()
        else:
            self.close()

    def _link_lost(self) -> None:
        if self.lines:
            self.loop.call_soon(self._recheck_all)

    def _recheck_all(self) -> None:
        for line in list(self.lines):
            line.recheck()

    def _subscribed(self) -> None:
        if self.polling:
            self.healing.subscribed()
        else:
            self._recheck_all()

    def _forbidden(self) -> None:
        if self.polling:
            self.healing.forbidden()
        else:
            self.poll("this Redis user lacks the rights +subscribe and &<prefix>*", rights=True)


def _tokens() -> Generator[bytes, None, None]:
    """Yield tokens, drawn many at a time: asking the system costs more than the rest. A fork has its own session."""
    while True:
        drawn = os.urandom(2048).hex().encode()
        yield from [drawn[at : at + 32] for at in range(0, len(drawn), 32)]


_NO_LOOP = "aiolocks runs under asyncio only: no asyncio event loop is running here"


def no_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


_sessions: dict[tuple[int, asyncio.AbstractEventLoop], Session] = {}

_warned: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Pools whose sessions poll; a session is short-lived, and the warning is worth reading once."""


def _forked() -> None:
    for session in _sessions.values():
        session.forked()
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
