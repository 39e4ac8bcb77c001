"""`RLock`: one holder at a time, which may acquire it again."""

import asyncio
from typing import ClassVar, Literal, final

from .._core.hints import explains_misuse
from .._core.options import UNSET, Duration, Replicas, Unset, options_of
from .._engine.acquire import Acquisition
from .._engine.block import Block
from .._engine.lease import Hold, Lease, state_of
from .._redis.clients import Client
from .base import Acquirable
from .reentry import SharedLease, held_by_parent, shared_lease_of


@final
class RLock(Acquirable):
    """A mutex that its holder may acquire again: for functions that each hold it and call one another.

    ::

        async with RLock(redis, "orders:42") as lease:
            async with RLock(redis, "orders:42") as again:  # at once, in the same task
                assert again.fencing_token == lease.fencing_token

    The holder is the task that acquired the lock, or that is inside a block with its lease. When it acquires the lock
    again, through any object of the same name and connection pool, it shares the one lease on the server, with its
    fencing token, its TTL and the other options of the first hold. Only `on_lost` is each block's own. The count is
    kept in this process: holds may be released in any order, and the last one releases the lease. A loss stops every
    block.

    A task that the holder *starts* while it holds is not the holder. If it would wait without a timeout it gets a
    `RuntimeError`, as its parent most likely waits for it. Start such a task before the block. If the block does not
    wait for it, start it with a context of its own (``create_task(…, context=contextvars.Context())``).

    Arguments and errors are those of `Lock`. A `Lock` of the same name is another lock.
    """

    _kind: ClassVar[str] = "rlock"

    @explains_misuse
    def __init__(
        self, client: Client, name: str, *, ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel", renew: bool = True, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, replicas: Replicas = 0,
        wait_release: bool = True, min_uptime: Duration = 0.0, min_hold: Duration = 0.0, track: bool = False,
        max_waiting: int | None = None, note: str | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        options = options_of(
            ttl, acquire_timeout, on_lost, renew, max_hold, watchdog, max_stall, replicas, wait_release,
            min_uptime, min_hold, track, max_waiting, note,
        )  # fmt: skip
        super().__init__(client, name, prefix, options)

    async def _try_acquire(self, permits: int) -> Lease | None:
        own = self._own_lease()
        if own is not None:
            return own.hold(self._options.on_lost, by_hand=True)
        # equivalent: 2 + True (first), a lock has one permit, and its blocks are listed elsewhere
        lease = await self._new_acquisition(0.0, 1, entering=False).try_acquire(Lease)
        return None if lease is None else self._first_of(lease, by_hand=True)

    def _hold(self, timeout: Duration | Unset | None, max_waiting: int | Unset | None, permits: int) -> Hold:
        seconds = self._timeout(timeout, max_waiting)
        return Hold(lambda: self._acquire_or_share(seconds, max_waiting), self)

    async def _acquire(self, timeout: Duration | Unset | None, max_waiting: int | Unset | None, permits: int) -> Lease:
        return await self._acquire_or_share(self._timeout(timeout, max_waiting), max_waiting, by_hand=True)

    async def _enter(self, block: Block) -> Lease:
        lease = await self._acquire_or_share(self._options.acquire_timeout)
        block.open(lease, state_of(lease))
        return lease

    async def _acquire_or_share(
        self, timeout: float | None, max_waiting: int | Unset | None = UNSET, *, by_hand: bool = False
    ) -> Lease:
        own = self._own_lease()
        if own is not None:
            return own.hold(self._options.on_lost, by_hand=by_hand)
        # With a timeout the wait ends by itself, and the lock may be released before.
        if timeout is None and held_by_parent(self._session().context, self._keys.base):
            raise RuntimeError(
                f"{self._kind} {self.name!r}: a task that holds it has started this one, and most likely waits for "
                "it. Give this one a timeout, or start it before the block, or with a context of its own"
            )
        # equivalent: 2 + True, a lock has one permit, and its blocks are listed elsewhere
        acquisition = self._bounded_acquisition(timeout, max_waiting, 1, entering=False)
        return self._first_of(await acquisition.acquire(Lease), by_hand=by_hand)

    async def _adopt(self, acquisition: Acquisition) -> Lease:
        return self._first_of(await acquisition.acquire(Lease), by_hand=True)

    def _first_of(self, lease: Lease, *, by_hand: bool) -> Lease:
        return SharedLease(lease, self._keys.base).hold(self._options.on_lost, by_hand=by_hand)

    def _own_lease(self) -> SharedLease | None:
        """Return the lease of which the running task has a hold, or None if it must ask for one.

        Raise LeaseLostError inside a block whose lease is lost. Lost leases acquired by hand do not count.
        """
        context, task = self._session().context, asyncio.current_task()
        own = shared_lease_of(context, self._keys.base, task)
        if own is None or own.core.validity.held:
            return own
        if own.core.validity.lost and own.entered_by(task):
            raise own.core.error()
        return None
