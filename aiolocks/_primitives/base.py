"""What every primitive offers: `async with`, `hold`, `acquire`, `try_acquire`, `release`, `locked`, `statistics`.

A primitive is a description: a client, a name, options. All state of an acquisition is in its `Lease`; the session
behind the client knows which lease a task took last and which blocks are open. So any number of tasks may share one
object, and objects may be made and dropped at will.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from .._core.doing import Doing
from .._core.elsewhere import Elsewhere
from .._core.keys import Keys
from .._core.offers import Offer, offer_of
from .._core.options import UNSET, Duration, Options, Unset, check_fencing_token, check_timeout
from .._core.teaching import called_itself, entered_without_async, teaching
from .._core.who import Holder, Waiter
from .._engine.acquire import Acquisition
from .._engine.block import ExitHandle, SharedContextManager
from .._engine.closing import Closing, closed_error
from .._engine.context import Context, Grantor
from .._engine.extension import Extension
from .._engine.holdings import Base, Loss
from .._engine.lease import Hold, Lease
from .._engine.lease_state import LeaseState, ModeChanges, loss_error
from .._engine.must_await import LOCKED, TRY_ACQUIRE, Acquiring, MustAwait, must_await
from .._engine.request import Request
from .._engine.validity import GONE_FROM_SERVER
from .._grantors.adoption import adopt
from .._grantors.one_server import RedisGrantor
from .._grantors.replication import replicas_of
from .._grantors.revocation import meant, revoke_all, wait_until_gone
from .._grantors.session import Session
from .._grantors.uptime import min_uptime_of
from .._grantors.who import holders_of, time_of, waiters_of
from .._redis.clients import Client, pool_of
from .._redis.scripts import Arguments

_TURNS = 3
"""Turns of the event loop after which a lease without references is known to have none."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """How a name stood when Redis was asked.

    Attributes:
        name: What was asked about.
        permits: Permits in use, including those that only `min_hold` keeps. 1 for a lock while it is held or kept.
            With readers, one for each lease.
        holders: Leases held, not counting released ones that only `min_hold` keeps.
        waiting: Waiters in the queue.
        fencing_token: The newest fencing token; 0 if none was given for a day.
        limit: How many permits may be in use; 1 for a lock; 0 where there is no limit.
        kept_until: Time, by the server's clock, until which `min_hold` keeps the last of the released leases. None if
            it keeps none.
    """

    name: str
    permits: int
    holders: int
    waiting: int
    fencing_token: int
    limit: int
    kept_until: datetime | None = None


class Acquirable(Elsewhere, SharedContextManager[Lease]):
    """The base of the primitives; not for use by itself."""

    _kind: ClassVar[str]
    _family: ClassVar[str] = ""
    """The primitive whose scripts it uses, if not its own."""
    _closing: Closing | None = None
    """The `Closing` of the manager that made this primitive, if a manager made it."""
    _share = 1
    """What a block asks for by default: one permit, or a mode."""

    def __init__(self, client: Client, name: str, prefix: str, options: Options) -> None:
        self._pool = pool_of(client)
        self._extensions: tuple[Extension, ...] = (
            *replicas_of(options, self._pool), *min_uptime_of(options, self._pool)
        )  # fmt: skip
        """What each request carries beyond the usual."""
        self._keys = Keys(prefix, self._kind, name, self._family)
        self._base: Base = self._keys.base
        self._options = options
        self._newest_grantor: RedisGrantor | None = None

    @property
    def _called(self) -> str:
        """Its name in the texts of errors."""
        return type(self).__name__

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._keys.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _enter(self, block: ExitHandle) -> Coroutine[Any, Any, Lease]:
        return self._asking(self._options.acquire_timeout, self._share, entering=True).acquire(Lease, block=block)

    def _hold(self, timeout: Duration | Unset | None, permits: int) -> Hold:
        return self._hold_for(self._timeout(timeout), permits)

    def _hold_for(self, timeout: float | None, permits: int) -> Hold:
        return Hold(lambda: self._asking(timeout, permits, entering=True).acquire(Lease), self)

    def _acquiring(self, timeout: Duration | Unset | None, permits: int) -> Acquiring:
        return Acquiring(self._acquire(timeout, permits), partial(self._hold, timeout, permits), self)

    async def _acquire(self, timeout: Duration | Unset | None, permits: int) -> Lease:
        # The task that awaits this is the one that asks; it need not be the one that called `acquire`.
        return await self._asking(self._timeout(timeout), permits, entering=True).acquire(Lease, by_hand=True)

    async def _try_acquire(self, permits: int) -> Lease | None:
        if self._would_wait_for_itself(self._session().context, asyncio.current_task()):
            return None
        return await self._asking(0.0, permits, entering=False).try_acquire(Lease, by_hand=True)

    @teaching
    def hold(self, *, timeout: Duration | Unset | None = UNSET) -> Hold:
        """Return a block that waits *timeout* seconds: ``async with lock.hold(timeout=5) as lease:``.

        Left out: `acquire_timeout`. None waits for ever; 0 asks once. The holder of an `RLock` never waits.

        Entering it raises as `acquire` does. On leaving it, LeaseLostError: the lease was lost, and the body raised
        nothing of its own. After a cancellation nothing stays held or queued that was not before.
        """
        return self._hold(timeout, self._share)

    @teaching
    def acquire(self, *, timeout: Duration | Unset | None = UNSET) -> Acquiring:
        """Wait for a lease and return it; the caller must release it. As a block it works like `hold`.

        It is renewed until then. Prefer `async with`, which also stops the body when the lease is lost. A task that
        acquires by hand a name that it already holds by hand waits for itself. This is not detected. An `RLock` that
        was acquired several times must be released as often.

        Args:
            timeout: Seconds to wait. Left out: `acquire_timeout`. None waits for ever; 0 asks once. The holder of an
                `RLock` never waits.

        Raises:
            AcquireTimeoutError: Not granted within *timeout*, as others were in the way.
            RuntimeError: This task is inside a block of the same name, and would wait for itself. `RLock`: a task that
                holds it started this one and most likely waits for it, and there is no timeout.
            LeaseLostError: `RLock`: this task is inside a block of it whose lease is lost.
            QuorumError: `Redlock`: too few servers answered, for a second at first, for a TTL once enough have
                answered, and for 10 s where other clients' scripts keep them busy.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held that was not before: what may have been granted is released,
        or lapses within its TTL where Redis cannot be reached.
        """
        return self._acquiring(timeout, self._share)

    @teaching
    def try_acquire(self) -> MustAwait[Lease | None]:
        """Ask once: return a lease, or None if a holder or waiter is in the way, or `min_uptime`. The holder of an
        `RLock` gets one.

        Two callers that ask a `Redlock` at the same moment may both get None, as each may have got some of the servers.

        Raises:
            LeaseLostError: `RLock`: this task is inside a block of it whose lease is lost.
            QuorumError: `Redlock`: too few servers answered.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held that was not before.
        """
        return MustAwait(self._try_acquire(self._share), TRY_ACQUIRE)

    async def adopt(self, text: str | bytes) -> Lease:
        """Go on with a lease that was handed off, in this process or another; the caller must release it.

        It is a new lease, with a token, a fencing token, a TTL and a `min_hold` of its own, renewed like any other. No
        other holder has had the name in between. If several callers adopt the same text, one gets the lease.

        Args:
            text: What `lease.hand_off()` returned, or the same in bytes.

        Raises:
            LeaseLostError: It comes too late: it was not adopted in time, or has been adopted already, or was revoked.
            ValueError: The text is of another kind, name, prefix or mode, or broken. Nothing was sent.
            TypeError: It is no text, or this is a `Redlock`.
            RedisError: Redis could not be asked.

        After an error of Redis or a cancellation the lease is released, if it was adopted.
        """
        offer = offer_of(text)
        mine = self._share_adopted(offer.share)
        if (offer.kind, offer.bases, offer.share) != (
            self._kind,
            tuple(keys.base for keys in self._every_keys()),
            mine,
        ):
            raise ValueError(f"{self!r}: the text is of a lease of another kind, name, prefix or mode")
        return await self._adopt(self._asking(None, mine, entering=False), offer)

    async def _adopt(self, acquisition: Acquisition, offer: Offer) -> Lease:
        with Doing(f"adopting {acquisition.what}"):
            return await adopt(acquisition, offer, by_hand=True)

    def _share_adopted(self, share: int) -> int:
        """Return what a lease must have that is adopted here, where it is offered with *share*."""
        return self._share

    @must_await(LOCKED)
    async def locked(self) -> bool:
        """Say whether the name is held, or kept by `min_hold`; for a `Redlock`, whether it is so on most servers.

        Raises:
            QuorumError: `Redlock`: too few servers answered.
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        return (await self.statistics()).permits > 0

    async def release(self) -> None:
        """Release the newest lease of this name that the calling task took by hand and has not released.

        If it has none: the newest lease whose task has ended and whose `Lease` nothing refers to, such as that of
        ``await asyncio.wait_for(lock.acquire(), 5)`` before Python 3.12. Such a lease is not renewed any more.

        Raises:
            RuntimeError: There is no such lease. A block releases its own, and `lease.release()` releases any.
            LeaseLostError: It was lost before. The loss is remembered for one more TTL, and raised once.
            RedisError: Not confirmed; the lease ends with its TTL.

        After a cancellation the release goes on in the background.
        """
        session = Session.find(self._pool)
        found: LeaseState | Loss | None = None
        if session is not None:
            holdings = session.context.holdings
            found = holdings.newest(asyncio.current_task(), self._base)
            for _ in range(_TURNS):  # until its next turn, the loop itself refers to the task that it ran last
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
            raise found.error(None if found.lost else GONE_FROM_SERVER)

    @teaching
    async def revoke(
        self, *, fencing_token: int | None = None, force: bool = False, timeout: Duration | None = None
    ) -> tuple[Holder, ...]:
        """Make the current holders of the name stop, and wait until they have: then the next in line is granted it.

        Their next renewal is refused. So their leases are lost, with "revoked" as `LeaseLostError.reason`. A holder
        that stops when its lease is lost frees the name after 0.37 `ttl` at most. A holder that is not renewed, or does
        not stop, keeps it until its lease ends. An upgrade goes with the lease that it grew from; of a
        `MultiLock` or a path, all goes with the part that is revoked here. Callers that wait go on waiting.

        Args:
            fencing_token: That of the one holder to stop, such as one of several readers. Left out: all there are now,
                in whatever mode, and no later one.
            force: End their leases at once, in whatever mode, without waiting for anything. The old holder notices
                at its next renewal. Until then two may be at work; only the fencing token tells them apart.
            timeout: Seconds to wait until they are gone; None waits for ever; 0 asks once.

        Returns:
            Who was stopped; none if no one held it.

        Raises:
            AcquireTimeoutError: Some hold it still after *timeout*. They are renewed no more all the same.
            RuntimeError: The holder is not one of this library, and cannot be told; *force* ends its lease.
            QuorumError: `Redlock`: too few servers answered to stop a majority.
            RedisError: Redis could not be asked. They may be stopped all the same, as after a cancellation. Asking
                again is harmless.
        """
        if fencing_token is not None:
            check_fencing_token(fencing_token)
        seconds = check_timeout("timeout", timeout)
        known = {holder.fencing_token: holder for holder in await self.holders()}
        closing = self._closing
        waiting = None if closing is None else closing.begin(self._kind, self.name)
        try:
            with Doing(f"revoking {self._kind} {self.name!r}"):
                stopped = await self._revoke(fencing_token, bool(force), seconds)
        except BaseException as error:
            if closing is not None and closing.end(waiting, error):
                raise closed_error(self._kind, self.name) from None
            raise
        if closing is not None:
            closing.end(waiting, None)
        return tuple(known.get(holder.fencing_token, holder) for holder in stopped)

    async def _revoke(self, fencing_token: int | None, force: bool, timeout: float | None) -> tuple[Holder, ...]:
        grantors = self._grantors()
        with grantors[0].context.keep_open():  # theirs, until all is over
            found = await asyncio.gather(*(meant(each, fencing_token, force=force) for each in grantors))
            of_names = [one for one in found if one is not None]
            if of_names:
                revoke = partial(revoke_all, of_names, force=force)
                await wait_until_gone(f"{self._kind} {self.name!r}", self.name, revoke, timeout)
        return tuple(holder for one in of_names for holder in one.holders)

    def _grantors(self) -> Sequence[RedisGrantor]:
        """Return who decides over each of the names."""
        return [cast("RedisGrantor", self._grantor())]

    async def statistics(self) -> Statistics:
        """Ask Redis how the name stands.

        Waiters of more than 500 processes, and more than 500 leases, are counted in parts, one after the other, so
        the sums are of several moments.

        Raises:
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        with Doing(f"asking about {self._kind} {self.name!r}"):
            return statistics_of(self.name, await self._standing())

    async def holders(self) -> tuple[Holder, ...]:
        """Ask Redis who holds the name: a `Holder` for each lease, oldest first.

        Of more than 500 they are asked for in parts, so the answer is of several moments. What the sessions of holders
        have not said of themselves, or may not be read, is None.

        Raises:
            QuorumError: `Redlock`: too few servers answered.
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        with Doing(f"asking about {self._kind} {self.name!r}"):
            return await holders_of(cast("RedisGrantor", self._grantor()))

    async def waiters(self) -> tuple[Waiter, ...]:
        """Ask Redis who waits for the name: a `Waiter` for each caller in the queue, first come, first.

        As of `holders`. A `Redlock` has no queue, and so nobody waits there.

        Raises:
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        with Doing(f"asking about {self._kind} {self.name!r}"):
            return await waiters_of(cast("RedisGrantor", self._grantor()))

    async def _standing(self, *, waiting: bool = True) -> list[Any]:
        return await cast("RedisGrantor", self._grantor()).statistics(waiting=waiting)

    async def _ask(self, verb: str, args: Arguments = (), *, as_waiter: bool = False) -> Any:
        return await cast("RedisGrantor", self._grantor()).ask(verb, args, as_waiter=as_waiter)

    if not TYPE_CHECKING:  # type checkers know without it

        def __call__(self, *args, **keywords):
            raise called_itself(self._called, keywords)

        __enter__ = __exit__ = entered_without_async

    def _asking(self, timeout: float | None, permits: int, *, entering: bool) -> Acquisition:
        """Begin an acquisition; nothing is asked of Redis yet. *entering*: raise if the task would wait for itself."""
        grantor, options = self._grantor(), self._options
        context = grantor.context
        task = asyncio.current_task(context.loop)
        if entering and context.holdings.blocks and self._would_wait_for_itself(context, task):
            raise waits_for_itself(self._kind, self.name)
        wait = timeout is None or timeout > 0
        # Positional: with keywords, Python 3.11 takes a fifth of a microsecond longer.
        request = Request(options.ttl, permits, wait, context.new_token(), 0, self._extensions)
        return Acquisition(
            context, grantor, self._base, request, options, timeout, task, self._closing, self._mode_changes()
        )

    def _mode_changes(self) -> ModeChanges | None:
        """Return what changes the mode of a lease, if it has one."""
        return None

    def _grantor(self) -> Grantor:
        """Return the grantor for the running loop; it is kept, as making one costs as much as asking it."""
        kept = self._newest_grantor
        try:
            if (
                kept is not None and kept.context.loop is asyncio.get_running_loop() and not kept.context.closed
                and (self._closing is None or not self._closing.closed)
            ):  # fmt: skip
                return kept
        except RuntimeError:  # no loop runs here; told next
            pass
        grantor = self._newest_grantor = self._session().grantor(self._keys)
        return grantor

    def _session(self) -> Session:
        """Return the session of the running loop.

        Raises:
            RuntimeError: The manager that made this is closed.
        """
        if self._closing is not None and self._closing.closed:
            raise closed_error(self._kind, self.name)
        return Session.of(self._pool)

    def _would_wait_for_itself(self, context: Context, task: "asyncio.Task[Any] | None") -> bool:
        return context.holdings.inside(task, self._base) > 0  # defect: W12-itself

    def _every_keys(self) -> tuple[Keys, ...]:
        return (self._keys,)

    def _timeout(self, timeout: Duration | Unset | None) -> float | None:
        return self._options.acquire_timeout if timeout is UNSET else check_timeout("timeout", timeout)


def made_by_manager(acquirable: Acquirable, closing: Closing, holder: str | None) -> None:
    """Let *closing* end the waits of *acquirable*, and *holder* be the name of its holders and waiters in `holders`."""
    acquirable._closing = closing
    if holder is not None:
        for keys in acquirable._every_keys():
            keys.holder = holder


def statistics_of(name: str, row: Sequence[int]) -> Statistics:
    """Return the statistics of a name from the *row* that one script, or several, returned."""
    permits, leases, waiting, fence, limit, _, kept, kept_until_ms, *_ = row
    # Counted in parts, a lease that moves on meanwhile may be counted twice.
    return Statistics(name, permits, max(leases - kept, 0), waiting, fence, limit, time_of(1000 * kept_until_ms))


def waits_for_itself(kind: str, name: str) -> RuntimeError:
    instead = {"lock": "; an RLock may be taken again", "rwlock": "; pass its lease on, or begin with `upgradeable`"}
    return RuntimeError(
        f"{kind} {name!r}: this task is inside a block that holds it, and would wait for itself"
        f"{instead.get(kind, '')}; to test what others are told, hold it in another task, or by `await acquire()`"
    )
