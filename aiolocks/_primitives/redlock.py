"""`Redlock`: one holder at a time, on a majority of independent servers."""

from collections.abc import Iterable
from typing import ClassVar, Literal, final

from redis.asyncio import Redis

from .._core.hints import explains_misuse
from .._core.options import Duration, options_of
from .._core.values import Holder, Statistics, Waiter
from .._engine.lease import Lease
from .._grantors.quorum import Quorum
from .._grantors.revocation import revoke_of_quorum
from .._grantors.session import Session
from .._grantors.uptime import min_uptime_of
from .._grantors.who import time_of
from .._redis.clients import Client, place_of, pool_of, server_of
from .base import Acquirable


@final
class Redlock(Acquirable):
    """A mutex on a majority of several independent servers: it survives the loss of the others.

    ::

        async with Redlock([redis_a, redis_b, redis_c], "orders:42") as lease:
            ...

    The servers must be independent: no replicas, no nodes of one Cluster. All are asked at the same time. A majority
    decides, however long the others take. There is no queue: a failed attempt is retried after a random delay. So
    callers are not served in the order in which they asked, and `statistics()` counts no waiters.

    The limits of any lease remain, and there are two more. A server that restarts empty must stay away for a TTL, which
    `min_uptime` ensures. The drift of clocks must be bounded. Where stale writes must be kept out, pass `fencing_token`
    to the resource. `lease.guard` raises `TypeError`, as no single server knows whether a majority still has the lease.

    The other arguments and the errors are those of `Lock`.

    Args:
        clients: One `redis.asyncio.Redis` for each server, as you configured them, no two of one address. Use three or
            five; two are less often available than one. They are neither modified nor closed.
        min_uptime: Seconds that a server must have been up before it has a vote. Until then it counts as unreachable.
    """

    _kind: ClassVar[str] = "redlock"

    @explains_misuse
    def __init__(
        self, clients: Iterable[Client], name: str, *, ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel", renew: bool = True, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, wait_release: bool = True,
        min_uptime: Duration = 0.0, min_hold: Duration = 0.0, note: str | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        given: object = clients
        if isinstance(given, Redis):
            raise TypeError("clients must be several, such as [a, b, c]: see Lock for a single one")
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise TypeError(
                f"clients must be several, such as [a, b, c], not {type(given).__name__}; the name comes next"
            )
        several = list(clients)
        if not several:
            raise ValueError("clients must not be empty")
        options = options_of(
            ttl, acquire_timeout, on_lost, renew, max_hold, watchdog, max_stall, 0, wait_release, min_uptime, min_hold,
            False, None, note,
        )  # fmt: skip
        super().__init__(several[0], name, prefix, options)
        self._pools = [pool_of(client) for client in several]
        self._places = [place_of(pool) for pool in self._pools]
        min_uptime_of(options, *self._pools)  # raises where a server cannot tell
        if len({server_of(pool) for pool in self._pools}) < len(self._pools):
            raise ValueError("clients must be of different servers, as a server that is asked twice has two votes")

    async def adopt(self, text: str | bytes) -> Lease:
        """Raise TypeError: the lease of a `Redlock` is on several servers, and cannot be handed off."""
        raise self._not_handed_off()

    async def touch(self, text: str | bytes, ttl: Duration | None = None) -> int | None:
        """Raise TypeError, as `adopt` does."""
        raise self._not_handed_off()

    async def drop(self, text: str | bytes) -> bool:
        """Raise TypeError, as `adopt` does."""
        raise self._not_handed_off()

    def _not_handed_off(self) -> TypeError:
        return TypeError(f"{self!r}: its leases are on several servers, and cannot be handed off; those of a Lock can")

    async def statistics(self) -> Statistics:
        """Ask the servers for the state of the name: it is held when most of them have a holder. There is no queue.

        `kept_until` is the latest time that any server reports, each by its own clock. The errors are those of
        `Lock.statistics`.
        """
        taken, fence, kept_until_ms = await self._grantor().statistics(self._options.ttl)
        holders = int(taken and not kept_until_ms)
        return Statistics(self.name, int(taken), holders, 0, fence, 1, time_of(1000 * kept_until_ms))

    async def holders(self) -> tuple[Holder, ...]:
        """Ask the servers who holds the name on most of them: one `Holder`, or no holder; see `Lock.holders`."""
        return await self._grantor().holders(self._options.ttl)

    async def waiters(self) -> tuple[Waiter, ...]:
        """Return an empty tuple, as there is no queue."""
        return ()

    async def _revoke(
        self, fencing_token: int | None, force: bool, timeout: float | None, reason: bytes
    ) -> tuple[Holder, ...]:
        return await revoke_of_quorum(
            self._grantor(), self._options.ttl, fencing_token, force=force, timeout=timeout, reason=reason
        )

    def _grantor(self) -> Quorum:
        self._session()  # raises if the manager that made this is closed
        return Quorum([Session.of(pool).grantor(self._keys) for pool in self._pools], self._keys, self._places)
