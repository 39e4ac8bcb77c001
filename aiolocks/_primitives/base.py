"""What every primitive offers: `async with`, `hold`, `acquire`, `try_acquire`, `release`, `locked`, `statistics`.

A primitive is a description: a client, a name, options. All state of an acquisition is in its `Lease`. The session
behind the client knows which lease a task acquired last and which blocks are open. So any number of tasks may share
one object.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .._core.doing import Doing
from .._core.hints import NameHints, entered_without_async, explains_misuse, not_callable
from .._core.keys import Keys
from .._core.kinds import KINDS
from .._core.options import UNSET, Duration, Options, Unset, check_fencing_token, check_note, check_timeout, check_ttl
from .._core.untyped import Coro, Task
from .._core.values import Holder, Offer, Statistics, Waiter, offer_of
from .._engine.acquire import Acquisition
from .._engine.block import Block, SharedContextManager
from .._engine.closing import Closing, closed_error
from .._engine.context import Context, Grantor
from .._engine.extension import Extension
from .._engine.holdings import Base, Loss
from .._engine.lease import Hold, Lease
from .._engine.lease_state import GONE_FROM_SERVER, LeaseState, loss_error
from .._engine.must_await import LOCKED, TRY_ACQUIRE, Acquiring, MustAwait, must_await
from .._engine.note import note_of
from .._engine.request import Request
from .._grantors.hand_off import drop, prepare_adoption, touch
from .._grantors.max_waiting import bound, check_call, max_waiting_of
from .._grantors.min_hold import min_hold_of
from .._grantors.one_server import RedisGrantor
from .._grantors.replication import replicas_of
from .._grantors.revocation import revoke
from .._grantors.session import Session
from .._grantors.uptime import min_uptime_of
from .._grantors.who import holders_of, time_of, waiters_of
from .._redis.clients import Client, pool_of

T = TypeVar("T")

_TURNS = 3
"""Number of turns of the event loop after which nothing of the loop itself refers to a lease any more."""

_INSTEAD = {kind.name: f"; {kind.instead}" for kind in KINDS if kind.instead}


class Acquirable(NameHints, SharedContextManager[Lease]):
    """The base of the primitives; not for use by itself."""

    _kind: ClassVar[str]
    """Its name in `KINDS`."""
    _closing: Closing | None = None
    """The `Closing` of the manager that made this primitive, if a manager made it."""
    _amount = 1
    """One permit, or a mode: what a block asks for by default."""
    _above: Sequence[Keys] = ()
    """The keys of the levels above a path, from the root down."""
    _modes_above: Sequence[int] = ()
    """The modes in which a lease of a level above counts as one of the path."""

    def __init__(self, client: Client, name: str, prefix: str, options: Options) -> None:
        self._pool = pool_of(client)
        self._extensions: tuple[Extension, ...] = ()
        """The options that add to each request."""
        if options.extends:
            each = replicas_of(options, self._pool), min_uptime_of(options, self._pool), min_hold_of(options)
            self._extensions = tuple(chain(*each, max_waiting_of(options), note_of(options)))
        self._keys = Keys(prefix, self._kind, name)
        self._each: Sequence[Keys] = (self._keys,)
        """The keys of each name that it holds."""
        self._base: Base = self._keys.base
        self._options = options
        self._newest_grantor: RedisGrantor | None = None

    @property
    def _called(self) -> str:
        """Its class, and its mode if it has one, for errors."""
        return type(self).__name__

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._keys.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _enter(self, block: Block) -> Coro[Lease]:
        acquisition = self._new_acquisition(self._options.acquire_timeout, self._amount, entering=True)
        return acquisition.acquire(Lease, block=block)

    def _hold(self, timeout: Duration | Unset | None, max_waiting: int | Unset | None, permits: int) -> Hold:
        seconds = self._timeout(timeout, max_waiting)
        return Hold(lambda: self._bounded_acquisition(seconds, max_waiting, permits).acquire(Lease), self)

    async def _acquire(self, timeout: Duration | Unset | None, max_waiting: int | Unset | None, permits: int) -> Lease:
        # The task that awaits this is the holder; another task may have called `acquire`.
        if timeout is UNSET and max_waiting is UNSET:  # as `_bounded_acquisition` does, for speed
            acquisition = self._new_acquisition(self._options.acquire_timeout, permits, entering=True)
        else:
            acquisition = self._bounded_acquisition(timeout, max_waiting, permits)
        return await acquisition.acquire(Lease, by_hand=True)

    def _bounded_acquisition(
        self, timeout: Duration | Unset | None, max_waiting: int | Unset | None, permits: int, *, entering: bool = True
    ) -> Acquisition:
        """Return a new acquisition on the terms of a call; see `_new_acquisition`."""
        if timeout is UNSET and max_waiting is UNSET:  # the options hold, as in nearly all calls
            return self._new_acquisition(self._options.acquire_timeout, permits, entering=entering)
        acquisition = self._new_acquisition(self._timeout(timeout, max_waiting), permits, entering=entering)
        if max_waiting is not UNSET:
            bound(acquisition.request, max_waiting)
        return acquisition

    async def _try_acquire(self, permits: int) -> Lease | None:
        if self._would_wait_for_itself(self._session().context, asyncio.current_task()):
            return None
        return await self._new_acquisition(0.0, permits, entering=False).try_acquire(Lease, by_hand=True)

    @explains_misuse
    def hold(self, *, timeout: Duration | Unset | None = UNSET, max_waiting: int | Unset | None = UNSET) -> Hold:
        """Return a block that waits *timeout* seconds: ``async with lock.hold(timeout=5) as lease:``.

        The default is `acquire_timeout`. None waits for ever. 0 tries once. The holder of an `RLock` never waits.
        *max_waiting* is for this call, in place of the option.

        Entering it raises the errors of `acquire`. Leaving it raises LeaseLostError if the lease was lost and the body
        raised no exception of its own. After a cancellation nothing stays held or queued that was not before.
        """
        return self._hold(timeout, max_waiting, self._amount)

    @explains_misuse
    def acquire(
        self, *, timeout: Duration | Unset | None = UNSET, max_waiting: int | Unset | None = UNSET
    ) -> Acquiring:
        """Wait for a lease and return it; the caller must release it. As a block it works like `hold`.

        It is renewed until then. Prefer `async with`, which also stops the body when the lease is lost. A task that
        acquires by hand a name that it already holds by hand waits for itself. This is not detected. An `RLock` that
        was acquired several times must be released as often.

        Args:
            timeout: Seconds to wait. The default is `acquire_timeout`. None waits for ever. 0 tries once. The holder of
                an `RLock` never waits.
            max_waiting: Maximum number of callers that wait, for this call. The default is the option. None is no
                bound. 0 never waits. TypeError for a `Redlock`, which has no queue.

        Raises:
            AcquireTimeoutError: Not granted within *timeout*, because the name was busy.
            QueueFullError: An AcquireTimeoutError at once: it is busy, and as many as *max_waiting* wait already. For a
                `MultiLock` or a path, any one of its names or levels; it can be found after a wait for others, and
                what was acquired until then is released.
            RuntimeError: This task is inside a block of the same name, so it would wait for itself. For an `RLock`: a
                task that holds it started this one and most likely waits for it, and there is no timeout.
            LeaseLostError: For an `RLock`: this task is inside a block of it whose lease is lost.
            QuorumError: For a `Redlock`: too few servers answered. It retries for a second at first, for a TTL once
                enough have answered, and for 10 s where other clients' scripts keep them busy; without a wait, for a
                second.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held that was not before: a lease that may have been granted is
        released, or ends within its TTL if Redis cannot be reached.
        """
        return Acquiring(self, self._acquire, self._hold, timeout, max_waiting, self._amount)

    @explains_misuse
    def try_acquire(self) -> MustAwait[Lease | None]:
        """Try once without waiting: return a lease, or None if the name is busy.

        It is busy if it is held, if others wait, or if the server has been up for less than `min_uptime`. The holder of
        an `RLock` always gets a lease. Two callers that ask a `Redlock` at the same time may both get None, as each may
        have got some of the servers. It raises LeaseLostError, QuorumError and RedisError as `acquire` does.

        After an error or a cancellation nothing stays held that was not before.
        """
        return MustAwait(self._try_acquire(self._amount), TRY_ACQUIRE)

    async def adopt(self, text: str | bytes) -> Lease:
        """Continue a lease that was handed off, in this process or another; the caller must release it.

        It is a new lease, with a token, a fencing token, a TTL and a `min_hold` of its own, renewed like any other. No
        other holder has had the name in between. If several callers adopt the same text, one gets the lease.

        Args:
            text: The result of `lease.hand_off()`, as str or bytes.

        Raises:
            LeaseLostError: Too late: it was not adopted in time, or has been adopted already, or was revoked.
            ValueError: The text is for another kind, name, prefix or mode, or broken. Nothing was sent.
            TypeError: It is neither str nor bytes, or this is a `Redlock`.
            RedisError: Redis could not be asked.

        After an error of Redis or a cancellation the lease is released, if it was adopted.
        """
        offer = self._offer_of(text)
        acquisition = self._new_acquisition(None, offer.amount, entering=False)
        prepare_adoption(acquisition, offer)
        with Doing(f"adopting {acquisition.what}"):
            return await self._adopt(acquisition)

    async def _adopt(self, acquisition: Acquisition) -> Lease:
        return await acquisition.acquire(Lease, by_hand=True)

    async def touch(self, text: str | bytes, ttl: Duration | None = None) -> int | None:
        """Extend a lease that was handed off, under the same text, and return its fencing token; None if it is gone.

        This is for a lease that lives from request to request, such as an edit lock whose heartbeat is an HTTP request.
        Any process can call it::

            text = await lease.hand_off(ttl=90)  # the first request; the browser keeps the text
            fence = await lock.touch(text)  # each later request; None: it is over, so do not save

        It is gone if it was not touched in time, or was adopted, dropped or revoked. A lease of several names is
        dropped as a whole when one of them is gone. A process of an older version can adopt it, but not touch or drop
        it; if a lease of several names is touched while such a process adopts it, that process can get LeaseLostError.

        No process holds the lease meanwhile, so nothing stops a body when it is lost. Only its fencing token protects
        what is written under a text: send the token with each write to a resource that rejects smaller ones. It is that
        of the lease that was handed off, for a `MultiLock` the largest of its names.

        Args:
            text: The result of `lease.hand_off()`, as str or bytes.
            ttl: Seconds, or a timedelta, that it lasts from now on; never less than it had left. None means the TTL in
                the text.

        Raises:
            ValueError: The text is for another kind, name, prefix or mode, or broken; or a bad *ttl*. Nothing was sent.
            TypeError: The text is neither str nor bytes, or this is a `Redlock`.
            RedisError: Redis could not be asked. The lease may have been extended all the same, as after a
                cancellation. Asking again is harmless.
        """
        offer = self._offer_of(text)
        seconds = offer.ttl if ttl is None else check_ttl(ttl)
        with Doing(f"touching {self._kind} {self.name!r}"):
            return await touch(self._grantors_of_offer(), offer, seconds)

    async def drop(self, text: str | bytes) -> bool:
        """End a lease that was handed off, so that the next waiter gets the name. Any process can call it.

        It ends at once: `min_hold` counts from an adoption, and here there was none.

        Args:
            text: The result of `lease.hand_off()`, as str or bytes.

        Returns:
            True if this call ended it. False if it was gone: adopted, dropped or revoked before, or not touched in
            time. If a reply was lost, True can also mean that another call dropped or revoked the lease, or that it
            lapsed. It never means that another process adopted it.

        Raises:
            ValueError: The text is for another kind, name, prefix or mode, or broken. Nothing was sent.
            TypeError: The text is neither str nor bytes, or this is a `Redlock`.
            RedisError: Refused, or not confirmed within 10 s. It goes on in the background, as after a cancellation,
                and an offer that is not touched ends with its TTL.
        """
        offer = self._offer_of(text)
        with Doing(f"dropping {self._kind} {self.name!r}"):
            return await drop(self._grantors_of_offer(), offer)

    def _offer_of(self, text: str | bytes) -> Offer:
        """Read the text of a lease that was handed off. Raise ValueError unless it can be adopted here."""
        offer = offer_of(text)
        check_ttl(offer.ttl)  # another program can have made the text
        bases = tuple(keys.base for keys in self._every_keys())
        if (offer.kind, offer.bases, offer.amount) != (self._kind, bases, self._amount_adopted(offer.amount)):
            raise ValueError(f"{self!r}: the text is of a lease of another kind, name, prefix or mode")
        return offer

    def _grantors_of_offer(self) -> list[RedisGrantor]:
        """Return a grantor for each secret, in the order of the text."""
        session = self._session()
        return [session.grantor(keys) for keys in self._every_keys()]

    def _amount_adopted(self, offered: int) -> int:
        """Return the permits or the mode that a lease must have to be adopted here; it has *offered*."""
        return self._amount

    @must_await(LOCKED)
    async def locked(self) -> bool:
        """Return True if the name is held, or kept by `min_hold`; for a `Redlock`, on most servers.

        Raises:
            QuorumError: For a `Redlock`: too few servers answered.
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        return (await self.statistics()).permits > 0

    async def release(self) -> None:
        """Release the newest lease of this name that the calling task acquired by hand and has not released.

        If there is none, it releases the newest lease whose task has ended and whose `Lease` nothing refers to, such as
        that of ``await asyncio.wait_for(lock.acquire(), 5)`` before Python 3.12. Such a lease is no longer renewed.

        Raises:
            RuntimeError: There is no such lease. A block releases its own, and `lease.release()` releases any.
            LeaseLostError: It was lost before. The loss is remembered for one more TTL, and raised once.
            RedisError: Not confirmed; the lease ends with its TTL.

        After a cancellation the release continues in the background.
        """
        session = Session.find(self._pool)
        found: LeaseState | Loss | None = None
        if session is not None:
            holdings = session.context.holdings
            found = holdings.newest(asyncio.current_task(), self._base)
            for _ in range(_TURNS):  # until its next turn, the loop refers to the task that it ran last
                if found is None:
                    found = holdings.newest_unreferenced(self._base)
                    if found is None:
                        await asyncio.sleep(0)
        if found is None:
            raise RuntimeError(
                f"{self._kind} {self.name!r}: the calling task holds no lease to release that it acquired by hand"
            )
        if isinstance(found, Loss):
            raise loss_error(self._kind, self.name, found.fence, found.reason)
        if not await Lease(found).release():
            raise found.error(None if found.validity.lost else GONE_FROM_SERVER)

    @explains_misuse
    async def revoke(
        self, *, fencing_token: int | None = None, force: bool = False, timeout: Duration | None = None,
        reason: str | None = None,
    ) -> tuple[Holder, ...]:  # fmt: skip
        """Stop the present holders and wait until they have let go; then the next waiter is granted the name.

        Their next renewal is refused. So their leases are lost, with "revoked" as `LeaseLostError.reason`. A holder
        that stops when its lease is lost frees the name after 0.37 `ttl` at most. A holder that does not renew, or does
        not stop, keeps it until its lease ends. An upgrade ends with the lease that it upgrades. A `MultiLock` or a
        path ends completely when a part of it is revoked. Waiters keep waiting.

        Args:
            fencing_token: The fencing token of the one holder to stop, such as one of several readers. Without it, all
                present holders are stopped, in every mode, and no later one.
            force: End their leases at once, in every mode, without waiting. The old holder notices at its next renewal.
                Until then two may be at work; only the fencing token tells them apart.
            timeout: Seconds to wait until they are gone. None waits for ever. 0 asks once.
            reason: Why, for the holders: after ``revoke(reason="deploy 1.7")`` their `LeaseLostError.reason` is
                "revoked: deploy 1.7". At most 200 characters; control characters are escaped. If several calls revoke a
                lease, the first reason counts. A holder of an older version, or whose Redis is at its memory limit, and
                an upgrade, can get "revoked" alone.

        Returns:
            The holders that were stopped; an empty tuple if there were none.

        Raises:
            AcquireTimeoutError: Some still hold it after *timeout*. Their renewals are refused all the same.
            RuntimeError: The holder is a client without this library, which cannot be stopped; *force* ends its lease.
            QuorumError: For a `Redlock`: too few servers answered to stop a majority.
            RedisError: Redis could not be asked. The holders may be stopped all the same, as after a cancellation.
                Asking again is harmless.
        """
        if fencing_token is not None:
            fencing_token = check_fencing_token(fencing_token)
        seconds = check_timeout("timeout", timeout)
        why = (check_note(reason, "reason") or "").encode(errors="replace")
        known = {holder.fencing_token: holder for holder in await self.holders()}
        closing = self._closing
        waiting = None if closing is None else closing.begin(self._kind, self.name)
        try:
            with Doing(f"revoking {self._kind} {self.name!r}"):
                stopped = await self._revoke(fencing_token, bool(force), seconds, why)
        except BaseException as error:
            if closing is not None and closing.end(waiting, error):
                raise closed_error(self._kind, self.name) from None
            raise
        if closing is not None:
            closing.end(waiting, None)
        return tuple(known.get(holder.fencing_token, holder) for holder in stopped)

    async def _revoke(
        self, fencing_token: int | None, force: bool, timeout: float | None, reason: bytes
    ) -> tuple[Holder, ...]:
        return await revoke(
            self._kind, self.name, self._grantors(), fencing_token, force=force, timeout=timeout, reason=reason
        )

    async def statistics(self) -> Statistics:
        """Ask Redis for the state of the name. A `MultiLock` counts as one lock: it is held when one name is held.

        For a `MultiLock`, `waiting` is the sum over all names, as each caller waits for only one name at a time.
        `fencing_token` and `kept_until` are the largest. It raises what `locked` does.

        Waiters of more than 500 processes, and more than 500 leases, are counted in parts, one after the other, so
        the sums are of several moments.
        """
        with Doing(f"asking about {self._kind} {self.name!r}"):
            rows = [await grantor.statistics() for grantor in self._grantors()]
        permits, leases, waiting, fences, limits, _, kept, ends = zip(*(row[:8] for row in rows), strict=True)
        # Counted in parts, a lease that is released meanwhile may be counted twice.
        holders = max(max(each - released, 0) for each, released in zip(leases, kept, strict=True))
        kept_until = time_of(1000 * max(ends))
        paused = max(map(self._paused, rows))
        return Statistics(
            self.name, max(permits), holders, sum(waiting), max(fences), max(limits), kept_until, paused
        )  # fmt: skip

    def _paused(self, row: Sequence[Any]) -> float:
        """Return for how many seconds a name is paused, by its statistics."""
        return 0.0

    async def holders(self) -> tuple[Holder, ...]:
        """Ask Redis who holds the name: a `Holder` for each lease, oldest first; for a `MultiLock`, name by name.

        For a path, holders of all of a level above come first, from the root down; then its own, in any mode.

        More than 500 leases are asked for in parts, so the result is of several moments. Attributes that a session has
        not published, or that may not be read, are None. It raises what `locked` does.
        """
        return await self._of_each_name(holders_of)

    async def waiters(self) -> tuple[Waiter, ...]:
        """Ask Redis who waits for the name: a `Waiter` for each caller in the queue, in order; see `holders`.

        A `Redlock` has no queue, so it has no waiters. Each caller waits for one name of a `MultiLock` at a time, and
        for one level of a path: a caller that waits at a level above, to go further down, is not in the result.

        Raises:
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        return await self._of_each_name(waiters_of)

    async def _of_each_name(
        self, ask: Callable[[RedisGrantor, Sequence[int]], Awaitable[tuple[T, ...]]]
    ) -> tuple[T, ...]:
        session = self._session()
        with Doing(f"asking about {self._kind} {self.name!r}"):
            above = [await ask(session.grantor(keys), self._modes_above) for keys in self._above]
            return (*chain(*above), *chain(*[await ask(grantor, ()) for grantor in self._grantors()]))

    def _grantors(self) -> list[RedisGrantor]:
        session = self._session()
        return [session.grantor(keys) for keys in self._each]

    if not TYPE_CHECKING:  # type checkers know without it

        def __call__(self, *args, **keywords):
            raise not_callable(self._called, keywords)

        __enter__ = __exit__ = entered_without_async

    def _new_acquisition(self, timeout: float | None, permits: int, *, entering: bool) -> Acquisition:
        """Return a new acquisition; nothing is sent yet. With *entering*, raise if the task would wait for itself."""
        grantor, options = self._grantor(), self._options
        context = grantor.context
        blocks = context.holdings.blocks
        if entering and blocks and self._would_wait_for_itself(context, asyncio.current_task(context.loop)):
            raise waits_for_itself(self._kind, self.name)
        wait = timeout is None or timeout > 0
        # Positional: with keywords, Python 3.11 takes a fifth of a microsecond longer.
        request = Request(options.ttl, permits, wait, context.new_token(), 0, self._extensions)
        return Acquisition(context, grantor, self._base, request, options, timeout, self._closing)

    def _grantor(self) -> Grantor:
        """Return the grantor for the running loop. It is kept, as making one costs as much as asking it."""
        kept = self._newest_grantor
        try:
            if kept is not None and kept.context.loop is asyncio.get_running_loop() and not kept.context.closed:
                return kept  # whether the manager is closed, `Closing.begin` asks
        except RuntimeError:  # no loop runs here: `Session.of` raises an error that says so
            pass
        grantor = self._newest_grantor = self._session().grantor(self._keys)
        return grantor

    def _session(self) -> Session:
        if self._closing is not None and self._closing.closed:
            raise closed_error(self._kind, self.name)
        return Session.of(self._pool)

    def _would_wait_for_itself(self, context: Context, task: Task | None) -> bool:
        """W12: whether a block of *task* already holds the name."""
        return context.holdings.inside(task, self._base) > 0  # defect: W12-itself

    def _every_keys(self) -> tuple[Keys, ...]:
        """Return the keys of each level above and of each name."""
        return (*self._above, *self._each)

    def _timeout(self, timeout: Duration | Unset | None, max_waiting: int | Unset | None = UNSET) -> float | None:
        """Return the seconds that a call waits. Raise TypeError or ValueError unless both are valid."""
        if max_waiting is not UNSET:
            check_call(self._kind, max_waiting)
        return self._options.acquire_timeout if timeout is UNSET else check_timeout("timeout", timeout)


def made_by_manager(acquirable: Acquirable, closing: Closing, holder: str | None) -> None:
    """Let *closing* end the waits of *acquirable*, and label its holders and waiters with *holder*."""
    acquirable._closing = closing
    if holder is not None:
        for keys in acquirable._every_keys():
            keys.holder = holder


def waits_for_itself(kind: str, name: str) -> RuntimeError:
    return RuntimeError(
        f"{kind} {name!r}: this task already holds it in an enclosing block, and would wait for itself"
        f"{_INSTEAD.get(kind, '')}. (In a test of contention, hold it in another task, or with `await acquire()`)"
    )
