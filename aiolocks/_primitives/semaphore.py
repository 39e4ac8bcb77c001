"""`Semaphore`: at most *limit* permits at once, in the whole fleet."""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

from .._core import events
from .._core.doing import Doing
from .._core.errors import LimitMismatchError
from .._core.hints import QUORUM_OF_PERMITS, explains_misuse
from .._core.options import UNSET, Duration, Replicas, Unset, check_pause, check_permits, options_of
from .._core.replies import check_numbers
from .._core.untyped import Task
from .._core.values import Statistics
from .._engine.acquire import Acquisition
from .._engine.context import Context
from .._engine.extension import Extension
from .._engine.lease import Hold, Lease
from .._engine.must_await import LOCKED, TRY_ACQUIRE, Acquiring, MustAwait, must_await
from .._redis.clients import Client, server_of
from .base import Acquirable, waits_for_itself

log = logging.getLogger("aiolocks")

_MAX_DECLARED = 10_000
"""Maximum number of limits that are remembered as declared, so that names used only once do not pile up."""

_DECLARE = 6
"""Position of the argument of `semaphore/grant` that says whether to declare the limit."""

_Declared = OrderedDict[tuple[bytes, int], None]

_declared: dict[Hashable, _Declared] = {}
"""The limits that this process has declared, per server, the last used last. Each is declared only once, so that a
later `resize` is not undone, and again when more than `_MAX_DECLARED` others have been used since."""


@final
class _Declaration(Extension):
    """Declares a limit, unless this process has done so before; refuses a wait of a task for itself (W12)."""

    def __init__(
        self, kind: str, name: str, base: bytes, limit: int | None, declared: _Declared,
        permits: int, inside: int,
    ) -> None:  # fmt: skip
        """Ask for *permits*. The task's open blocks have *inside* permits already. None as *limit* declares none."""
        self._kind, self._name = kind, name
        self._limit = limit or 0
        self._declaration = (base, self._limit)
        self._declared = declared
        self._permits, self._inside = permits, inside
        self._declares = limit is not None and self._declaration not in declared
        if limit is not None and not self._declares:
            _note(declared, self._declaration)

    def fits_again(self, permits: int, inside: int) -> bool:
        """Whether another request can carry it as well. Nearly all do, and making one costs a tenth of a request."""
        if permits != self._permits or inside != self._inside:
            return False
        if self._limit:
            if self._declaration not in self._declared:
                return False  # its answer was lost, or too many others have been used since
            _note(self._declared, self._declaration)
        return True  # equivalent: constant, for speed

    # equivalent: constant, it is not read
    def arguments(self, *, again: bool = False) -> tuple[bytes | int, ...]:
        if not self._declares or self._declaration in self._declared:  # or another request has done it
            return (self._limit, 0)
        self._declares = False  # a second declaration could undo a `resize` in between
        return (self._limit, 1)

    def held(self) -> None:
        return None

    def not_run(self, args: Sequence[Any]) -> None:
        self._declares = args[_DECLARE] == 1

    def on_reply(self, args: Sequence[Any], reply: Sequence[Any] | int) -> None:
        if isinstance(reply, int):  # the short reply to a waiter means that the limit in force is its own
            # equivalent: constant, and that it was not declared now
            verdict, before, limit = b"queued", 0, self._limit
        else:
            verdict, *_, before, limit = reply
            check_numbers(before, limit)
        objection = self.objection(limit) if verdict == b"queued" else None
        if objection is not None:
            raise objection
        # Only now is it declared, as an earlier request may not have arrived.
        if args[_DECLARE] == 1 and self._declaration not in self._declared:
            _note(self._declared, self._declaration)
            if before or limit != self._limit:
                self._report_difference(before, limit)

    def _report_difference(self, before: int, limit: int) -> None:
        if events.listeners:
            events.emit(events.Event("limit_differs", self._name, self._kind))
        if before:
            text = "%s %r: the limit in force was %d and is now %d, as this process declares it"
            log.warning(text, self._kind, self._name, before, limit)
        else:
            text = "%s %r: the limit in force is pinned at %d; the %d that this process declares is ignored"
            log.warning(text, self._kind, self._name, limit, self._limit)

    def refusal(self, amount: int) -> LimitMismatchError | None:
        if amount:
            return None
        return LimitMismatchError(
            f"{self._kind} {self._name!r}: no process has declared its limit; pass one instead of None, or resize it",
            name=self._name, permits=self._permits, limit=0,
        )  # fmt: skip

    def objection(self, limit: int) -> RuntimeError | None:
        if self._inside and self._inside + self._permits > limit > 0:  # defect: W12-permits
            return waits_for_itself(self._kind, self._name)
        return None


class Semaphore(Acquirable):
    """At most *limit* permits at once, over all processes that use the same Redis and name: first come, first served.

    ::

        async with Semaphore(redis, "scraper", 10):
            ...

    A big request at the head of the queue is not starved by small ones behind it. The permits of a crashed holder
    come back within its TTL. Expiry goes by the server's clock alone.

    Each process declares its limit at first use, and the latest declaration or `resize` is in force for all processes;
    a difference logs one warning. So a rolling deployment changes it without an outage. A limit that `resize` has
    pinned stays: processes that start later log one warning each, and their declarations are ignored.

    The other arguments and the errors are those of `Lock`.

    Args:
        limit: Number of permits, at least 1. None declares no limit and uses the one in force.
    """

    _kind: ClassVar[str] = "semaphore"

    @explains_misuse
    def __init__(
        self, client: Client, name: str, limit: int | None, *,
        ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel", renew: bool = True, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, replicas: Replicas = 0,
        wait_release: bool = True, min_uptime: Duration = 0.0, min_hold: Duration = 0.0,
        max_waiting: int | None = None, note: str | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        if limit is not None:
            limit = check_permits(limit, "limit")
        given: object = client
        if isinstance(given, (list, tuple)):
            raise TypeError(f"a semaphore needs one client: {QUORUM_OF_PERMITS}")
        options = options_of(
            ttl, acquire_timeout, on_lost, renew, max_hold, watchdog, max_stall, replicas, wait_release,
            min_uptime, min_hold, False, max_waiting, note,
        )  # fmt: skip
        super().__init__(client, name, prefix, options)
        self._limit = limit
        self._newest_declaration: _Declaration | None = None

    @explains_misuse
    def hold(
        self, *, permits: int = 1, timeout: Duration | Unset | None = UNSET, max_waiting: int | Unset | None = UNSET
    ) -> Hold:
        """Return a block that holds *permits*: ``async with semaphore.hold(permits=3, timeout=5) as lease:``.

        Entering it waits and raises as `acquire` does. The rest is as in `Lock.hold`.
        """
        permits = check_permits(permits)
        return self._hold(timeout, max_waiting, permits)

    @explains_misuse
    def acquire(
        self, *, permits: int = 1, timeout: Duration | Unset | None = UNSET, max_waiting: int | Unset | None = UNSET
    ) -> Acquiring:
        """Wait for *permits* and return their lease; the caller must release it. The rest is as in `Lock.acquire`.

        Args:
            permits: Number of permits, all under one lease.

        Raises:
            AcquireTimeoutError: Too few permits were released within *timeout*.
            LimitMismatchError: More permits than the limit in force, also if the limit shrinks during the wait.
                With ``limit=None``: no limit was ever declared, or it has expired.
            RuntimeError: This task's own blocks hold so many permits that it would wait for itself.

        After an error or a cancellation nothing stays held.
        """
        return Acquiring(self, self._acquire, self._hold, timeout, max_waiting, permits)

    @explains_misuse
    def try_acquire(self, *, permits: int = 1) -> MustAwait[Lease | None]:
        """Try once: return a lease of *permits*, or None if too few are free or another caller waits.

        Raises:
            LimitMismatchError: More permits than the limit in force. With ``limit=None``: there is none.
            RedisError: Redis could not be asked. After an error or a cancellation nothing stays held.
        """
        return MustAwait(self._try_acquire(permits), TRY_ACQUIRE)

    async def resize(self, limit: int, *, pin: bool | None = None) -> None:
        """Put *limit* in force for all processes, at once.

        A higher limit grants more to waiters at once. A lower limit revokes nothing, but nothing is granted until
        enough permits are back.

        Args:
            limit: Number of permits from now on.
            pin: True pins the limit: declarations of processes that start later are ignored, until a `resize` with
                False. None changes nothing: a pinned limit stays pinned, and any other can still be declared.

        A pin lasts as long as the limit is remembered: 30 days after the last use of the name, by a grant, a renewal or
        a `resize`. Processes of an older version know no pins. If only they use the name, a pin lasts for a day. If
        one of them declares another limit, or is the first to ask after all holders have died, the pin is gone.

        Raises:
            TypeError, ValueError: *limit* is not a number of permits, or *pin* is not a bool.
            RedisError: Not confirmed, so it may be in force. The same after a cancellation. Asking again is harmless.
        """
        limit = check_permits(limit, "limit")
        if pin is not None and not isinstance(pin, bool):
            raise TypeError(f"pin must be True, False or None, not {pin!r}")
        [grantor] = self._grantors()
        await grantor.ask("resize", (limit, -1 if pin is None else int(pin)), as_waiter=True)
        for declared in (self._limit, limit):
            if declared is not None:
                _note(self._declarations(), (self._keys.base, declared))

    async def pause(self, seconds: Duration) -> float:
        """Grant nothing to any process for *seconds*: what a 429 with ``Retry-After`` asks of a whole fleet.

        Holders go on: their leases are renewed, released, handed off and adopted as usual. Waiters keep their places,
        and are granted free permits as soon as the pause ends. During it `try_acquire` returns None, `locked` is True,
        and `retry_after` of an `AcquireTimeoutError` is never before its end. A pause only extends an earlier one.
        `resume` ends it, and so does the deletion of the semaphore's keys.

        It lasts by the server's clock. If that clock steps back, the pause lasts for *seconds* more at most, or for the
        time of the longest lease. The permits of a dead holder can then stay taken for as long.

        Processes of an older version are paused too. Their `statistics` show a pause as permits, and their `revoke`
        ends it.

        Args:
            seconds: How long from now on, from 0.001 to a day.

        Returns:
            Seconds until the pause ends: more than *seconds* if an earlier pause ends later.

        Raises:
            TypeError, ValueError: *seconds* is no such length of time.
            RedisError: Not confirmed, so it may be paused. The same after a cancellation. Asking again is harmless: the
                pause then ends later by the time between the two calls.
        """
        pause_ms = math.ceil(1000 * check_pause(seconds))
        left = await self._ask_pause(pause_ms) / 1000
        if events.listeners:
            events.emit(events.Event("paused", self.name, self._kind, left))
        return left

    async def resume(self) -> bool:
        """End a pause for all processes, and grant the free permits to the waiters at once.

        Returns:
            True if this call ended a pause. False if there was none, and also if Redis had to be asked again because
            its first reply was lost.

        Raises:
            RedisError: Not confirmed, so it may have ended. The same after a cancellation. Asking again is harmless.
        """
        return await self._ask_pause(0) == 1

    async def _ask_pause(self, pause_ms: int) -> int:
        """Pause for so many ms, or with 0 end the pause; return what `semaphore/pause` answers."""
        [grantor] = self._grantors()
        with Doing(f"{'pausing' if pause_ms else 'resuming'} {self._kind} {self.name!r}"):
            answer: int
            answer, *_ = await grantor.ask("pause", (pause_ms,), as_waiter=True)
        return answer

    @must_await(LOCKED)
    async def locked(self) -> bool:
        """Return True if no permits are free, or it is paused. The errors are those of `Lock.locked`."""
        now = await self.statistics()
        return now.permits >= now.limit or now.paused > 0

    async def statistics(self) -> Statistics:
        """Ask Redis for the number of permits in use, the limit, and the number of waiters.

        `limit` is the limit in force. Without one it is the limit that this object declares at its first use, or 0. The
        errors are those of `Lock.statistics`.
        """
        now = await super().statistics()
        return now if now.limit else replace(now, limit=self._limit or 0)

    def _paused(self, row: Sequence[Any]) -> float:
        paused_ms: int = row[8]
        return paused_ms / 1000

    def __repr__(self) -> str:
        return f"<Semaphore {self.name!r} limit={self._limit}>"

    def _amount_adopted(self, offered: int) -> int:
        return offered

    def _new_acquisition(self, timeout: float | None, permits: int, *, entering: bool) -> Acquisition:
        permits = check_permits(permits)
        acquisition = super()._new_acquisition(timeout, permits, entering=entering)
        base, holdings = self._keys.base, acquisition.context.holdings
        inside = holdings.inside(asyncio.current_task(), base) if holdings.blocks else 0
        declaration = self._newest_declaration
        if declaration is None or not declaration.fits_again(permits, inside):
            declaration = _Declaration(self._kind, self.name, base, self._limit, self._declarations(), permits, inside)
            self._newest_declaration = declaration
        acquisition.request.carry((declaration, *self._extensions))
        return acquisition

    def _declarations(self) -> _Declared:
        return _declared.setdefault(server_of(self._pool), OrderedDict())

    def _would_wait_for_itself(self, context: Context, task: Task | None) -> bool:
        return False  # only the server knows the limit in force; see `_Declaration`


def _note(declared: _Declared, declaration: tuple[bytes, int]) -> None:
    """Note that it was declared. Threads share this, so at no time may a look find it missing."""
    declared[declaration] = None
    declared.move_to_end(declaration)
    if len(declared) > _MAX_DECLARED:
        declared.popitem(last=False)
