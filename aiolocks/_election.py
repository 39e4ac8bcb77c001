"""`Election`: one leader in the fleet, and the loop around its lease, which is a `Candidacy`."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict, TypeVar, cast, final

from redis.exceptions import RedisError

from ._candidacy import Candidacy, Outage
from ._core.hints import NameHints, explains_misuse, held_by_mode
from ._core.options import UNSET, Duration, Replicas, Unset, check_timeout, options_of
from ._core.timing import RENEWALS_PER_TTL
from ._core.values import Holder, Waiter
from ._engine.lease import Lease
from ._primitives.base import Acquirable
from ._redis.clients import Client

T = TypeVar("T")


class ElectionOptions(TypedDict, total=False):
    """The options of an `Election`, for type checkers. See `Election`."""

    ttl: Duration
    max_hold: Duration | None
    watchdog: Literal["task", "thread"]
    max_stall: Duration
    replicas: Replicas
    min_uptime: Duration
    track: bool
    note: str | None
    prefix: str


@final
class _Office(Acquirable):
    """The lock whose holder is the leader."""

    _kind: ClassVar[str] = "election"


@final
class Election(NameHints):
    """Elects one leader among all that run an election of the same name. First come, first served.

    ::

        async def lead(lease: Lease) -> None:
            while True:
                await schedule_due_jobs(lease.fencing_token)
                await asyncio.sleep(1)


        await Election(redis, "scheduler", ttl=10).run(lead)

    The leader has a lease, which is renewed while `lead` runs. If it is lost, `lead` is cancelled before another
    process can be elected, and this process stands for election again. `lead` has the guarantees of the block of a
    `Lock` and its limits: a process that was stopped notices its loss late, so send `lease.fencing_token` along with
    each write.

    Each object is a candidate, also several in one process. `is_leader` and `term` are about this object.

    Every duration is a number of seconds or a `timedelta`.

    Args:
        client: Any `redis.asyncio.Redis`, as you configured it. It is neither modified nor closed.
        name: What to elect the leader of: 1 to 1,024 bytes of UTF-8, any text.
        ttl: Seconds until a leader is replaced whose process has died. At least 0.1.
        max_hold: Seconds after which a leader is no longer renewed, so that a hung one cannot lead for ever. It loses
            the lease and stands again.
        watchdog, max_stall, replicas, min_uptime, track, note, prefix: See `Lock`.

    Raises:
        TypeError: A wrong type, a synchronous client, or an option of `Lock` that makes no sense here.
        ValueError: A value out of range, or `min_uptime` where a `Lock` refuses it. Both before any I/O.
    """

    @explains_misuse
    def __init__(
        self, client: Client, name: str, *,
        ttl: Duration = 30.0, max_hold: Duration | None = None, watchdog: Literal["task", "thread"] = "task",
        max_stall: Duration = 60.0, replicas: Replicas = 0, min_uptime: Duration = 0.0, track: bool = False,
        note: str | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        options = options_of(
            ttl, None, "cancel", True, max_hold, watchdog, max_stall, replicas, True, min_uptime, 0.0, track, None,
            note,
        )  # fmt: skip
        self._primitive = _Office(client, name, prefix, options)
        self._ttl = options.ttl
        self._candidacy: Candidacy | None = None

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._primitive.name

    @property
    def is_leader(self) -> bool:
        """Whether this object certainly leads now. It reads the clock, so it is right after any pause."""
        return self.term is not None

    @property
    def term(self) -> int | None:
        """The fencing token of the lease while `is_leader`, else None. Each term has a larger one than all before."""
        lease = None if self._candidacy is None else self._candidacy.lease
        return lease.fencing_token if lease is not None and lease.held else None

    async def run(self, lead: Callable[[Lease], Awaitable[T]]) -> T:
        """Wait to be elected, and call ``await lead(lease)`` in this task. Stand again after each loss of the lease.

        Args:
            lead: A coroutine function that works as the leader. When the lease is lost, or `resign` is called, it is
                cancelled at its next await, and at each further one until it ends. So shield cleanup that awaits, as in
                any block: ``with anyio.CancelScope(shield=True)``. If it returns then, its result is dropped.

        Returns:
            The result of *lead*, if that returned while it led. The lease is released by then.

        Raises:
            Exception: Any exception of *lead*. The lease is released by then. LeaseLostError after a loss is the loss
                itself, and does not end `run`.
            TypeError: *lead* is not a coroutine function.
            RuntimeError: This object is running already, or the manager that made it is closed.
            RedisError: A right is missing, or the password or the type of the key is wrong. After all other errors of
                Redis, `run` tries again, for ever, and logs one line a minute.

        A cancellation of `run` cancels *lead*. The lease is released, or the queue is left.
        """
        given: object = lead
        if inspect.iscoroutine(given):
            given.close()
        if not callable(given):
            raise TypeError(f"lead must be a coroutine function, as in run(lead), not {given!r}")
        if self._candidacy is not None and self._candidacy.alive:
            raise RuntimeError(f"{self!r}: it runs already. A second candidate is another Election of the same name")
        candidacy = self._candidacy = Candidacy(self.name, self._acquire, self._ttl)
        try:
            return await candidacy.run(lead)
        finally:
            if self._candidacy is candidacy:
                self._candidacy = None

    async def _acquire(self, timeout: float | None) -> Lease:
        return await self._primitive.acquire(timeout=timeout)

    async def resign(self, *, timeout: Duration | None = None) -> bool:
        """Cancel `lead` in this process, release the lease, and stand again at the end of the queue.

        It waits until the lease is released. If `lead` itself calls it, it does not wait, and `lead` is cancelled at
        its next await. A `lead` that swallows the cancellation is cancelled again until it ends. The lease is renewed
        until then, so that no other process leads at the same time.

        Args:
            timeout: Seconds to wait. None waits for ever. 0 does not wait.

        Returns:
            True once this object does not lead any more. False if it did not lead, or only stands.

        Raises:
            AcquireTimeoutError: `lead` has not ended within *timeout*. It is cancelled all the same, as it is after a
                cancellation of this call.
            RuntimeError: It runs in another event loop.
        """
        seconds = check_timeout("timeout", timeout)
        return False if self._candidacy is None else await self._candidacy.resign(seconds)

    async def leader(self) -> Holder | None:
        """Ask Redis which process leads. None if there is no leader.

        Raises:
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        return next(iter(await self._primitive.holders()), None)

    async def changes(self) -> AsyncGenerator[Holder | None, None]:
        """Yield the leader, or None, at once and after every change: ``async for leader in election.changes():``.

        It does not stand for election. It looks every third of a TTL, so it can miss a leader of a shorter time. During
        an outage of Redis it tries again, for ever, and logs one line a minute.

        Raises:
            RedisError: As for `run`. Cancelling is harmless.
        """
        outage, known = Outage(self.name), cast("int | Unset | None", UNSET)
        while True:
            try:
                leader = await self.leader()
            except (RedisError, OSError) as error:
                await outage.pause(error)
                continue
            outage.over()
            term = None if leader is None else leader.fencing_token
            if term != known:
                known = term
                yield leader
            await asyncio.sleep(self._ttl / RENEWALS_PER_TTL)

    async def waiters(self) -> tuple[Waiter, ...]:
        """Ask Redis which candidates wait to be elected, in their order; see `Lock.waiters`."""
        return await self._primitive.waiters()

    async def revoke(
        self, *, fencing_token: int | None = None, force: bool = False, timeout: Duration | None = None,
        reason: str | None = None,
    ) -> tuple[Holder, ...]:  # fmt: skip
        """Stop the leader, in any process. Wait until it has let go, and the next is elected; see `Lock.revoke`.

        The process that led stands again, at the end of the queue.
        """
        return await self._primitive.revoke(fencing_token=fencing_token, force=force, timeout=timeout, reason=reason)

    if not TYPE_CHECKING:  # type checkers know without it
        __aenter__ = __aexit__ = __enter__ = __exit__ = held_by_mode

    def __repr__(self) -> str:
        candidacy = self._candidacy
        return f"<Election {self.name!r} {'idle' if candidacy is None else candidacy.state.value}>"
