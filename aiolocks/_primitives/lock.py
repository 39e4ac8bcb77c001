"""`Lock`: one holder at a time."""

from typing import ClassVar, Literal, final

from .._core.options import Duration, Replicas, options_of
from .._core.teaching import teaching
from .._redis.clients import Client
from .base import Acquirable


@final
class Lock(Acquirable):
    """A mutex shared by every process that uses the same Redis and name: first come, first served.

    ::

        async with Lock(redis, "orders:42") as lease:
            ...

    The lease is renewed while the block runs. If it is lost nevertheless, the body is cancelled before another caller
    can be granted the lock, and the block raises `LeaseLostError`.

    Every duration is a number of seconds or a `timedelta`.

    Args:
        client: Any `redis.asyncio.Redis`, as you configured it. It is neither modified nor closed.
        name: What to lock: 1 to 1,024 bytes of UTF-8, any text.
        ttl: Seconds a lease lasts unless renewed: how long others wait when the holder's process dies. At least 0.1.
        acquire_timeout: Seconds to wait for the lock. Left out, a block waits for ever, as with None. 0 asks once.
        on_lost: "cancel" stops the body of a block when its lease is lost; "flag" only marks the lease.
        renew: False lets the lease end after its TTL, whatever the holder does.
        max_hold: Seconds after which a lease is not renewed any more, so that a hung body cannot hold for ever.
        watchdog: "task" renews from the event loop; "thread" from a thread, so even while the loop is blocked.
        max_stall: Seconds without a sign of life from the event loop after which that thread stops renewing.
        replicas: How many replicas must have a lease before it is returned; this costs a round trip or two. A failover
            then loses less, but can still lose leases. "majority" of R replicas that are connected is (1 + R) // 2,
            which with the primary is a majority of all; "all" is all that are connected. Both cost another round trip.
        wait_release: False: leaving a block sends the release and does not wait for its answer, which saves half of the
            time that a block takes. What you lose: that the lease had been taken away from the server before its block
            ended is then a line in the log, and no LeaseLostError. A release that is not confirmed is repeated in the
            background. What this client asks of the name next is asked behind it.
        min_uptime: Seconds that the server must have been up before it grants, so that one which restarts with nothing
            grants no lease while another still counts on its own. Until then a caller waits in line, and `try_acquire`
            returns None. At least the longest `ttl` of all clients, and all of them must ask for it. It says nothing of
            a promoted replica, of FLUSHALL, or of a server behind a proxy. The Redis user needs the right ``+info``.
        min_hold: Seconds for which the name stays taken from the grant on, even if it is released earlier: for jobs
            that several hosts start at the same minute, so that one which comes late does not run it again. The release
            returns True and ends the lease here at once. It may be longer than `ttl`; but a holder that dies frees the
            name at its `ttl`. Until then `locked` says True, and `statistics` counts the name in `permits` and says the
            end in `kept_until`. For a lease that was handed off, it counts again from the adoption.
        track: True: where the key of a lease is deleted, evicted or overwritten, the holder knows at once, and not only
            at its next renewal: Redis sends a hint over one more connection, which sets off one renewal, whose answer
            decides. The Redis user needs the right ``+client|tracking``. Without it, or on ``memory://``, one warning
            is logged, and nothing is tracked. SWAPDB sets off no hint. A lease is tracked 20 ms after it was granted,
            so short ones pay next to nothing.
        prefix: What every key begins with; no braces.

    Raises:
        TypeError: A wrong type, a synchronous client, or a keyword of redis-py's Lock that has another name here.
        ValueError: A value out of range, or `min_uptime` with Sentinel, a Cluster or ``memory://``. Both before
            any I/O.
    """

    _kind: ClassVar[str] = "lock"

    @teaching
    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: Duration = 30.0,
        acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        renew: bool = True,
        max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task",
        max_stall: Duration = 60.0,
        replicas: Replicas = 0,
        wait_release: bool = True,
        min_uptime: Duration = 0.0,
        min_hold: Duration = 0.0,
        track: bool = False,
        prefix: str = "aiolocks:",
    ) -> None:
        options = options_of(
            ttl,
            acquire_timeout,
            on_lost,
            renew,
            max_hold,
            watchdog,
            max_stall,
            replicas,
            wait_release,
            min_uptime,
            min_hold,
            track,
        )
        super().__init__(client, name, prefix, options)
