"""`Lock`: one holder at a time."""

from typing import ClassVar, Literal, final

from .._core.hints import explains_misuse
from .._core.options import Duration, Replicas, options_of
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
        acquire_timeout: Seconds to wait for the lock. None, the default, waits for ever. 0 tries once.
        on_lost: "cancel" stops the body of a block when its lease is lost. "flag" only marks the lease.
        renew: False lets the lease end after its TTL, whatever the holder does.
        max_hold: Seconds after which a lease is no longer renewed, so that a hung body cannot hold for ever.
        watchdog: "task" renews from the event loop. "thread" renews from a thread, even while the loop is blocked.
        max_stall: Seconds without a sign of life from the event loop after which that thread stops renewing.
        replicas: Number of replicas that must have a lease before it is returned; this costs a round trip or two. A
            failover then loses less, but can still lose leases. "majority" of R connected replicas is (1 + R) // 2,
            which with the primary is a majority of all. "all" is all that are connected. Both cost another round trip.
        wait_release: False sends the release when a block is left, and does not wait for the reply, which saves half of
            the time that a block takes. If the server had removed the lease before its block ended, a line in the log
            then says so, instead of LeaseLostError. A release that is not confirmed is repeated in the background. The
            client's next request for the name is sent behind it.
        min_uptime: Seconds that the server must have been up before it grants, so that a server that restarts without
            its data grants no lease while another holder still counts on its own. Until then a caller waits in the
            queue, and `try_acquire` returns None. Use at least the longest `ttl` of all clients, in all of them. It
            does not see a promoted replica, FLUSHALL, or a server behind a proxy. The Redis user needs the right
            ``+info``.
        min_hold: Seconds for which the name stays taken from the grant on, even if it is released earlier: for jobs
            that several hosts start at the same minute, so that a late host does not run the job again. The release
            returns True and ends the lease here at once. It may be longer than `ttl`, but a holder that dies frees the
            name at its `ttl`. Until then `locked` returns True, and `statistics` counts the name in `permits` and
            reports the end in `kept_until`. For a lease that was handed off, it counts again from the adoption.
        track: With True, the holder notices at once if the key of a lease is deleted, evicted or overwritten, before
            its next renewal. Redis sends a hint over one more connection, which triggers one renewal, whose reply
            decides. The Redis user needs the right ``+client|tracking``. Without it, or on ``memory://``, one warning
            is logged, and nothing is tracked. SWAPDB triggers no hint. A lease is tracked 20 ms after its grant, so
            short ones cost almost nothing.
        max_waiting: Maximum number of callers that wait for the name. If as many wait already, a caller that would have
            to wait gets QueueFullError at once, and is not queued. None is no bound. 0 never waits. A queue of more
            than 500 processes counts as full. A process that is stopped, or has lost its
            connection, may not count. Each caller has a bound of its own, and versions without this option have none.
        note: What the lease is for, as `holders`, `waiters` and the command line show it: at most 200 characters. Every
            reader of the Redis keys can see it. It is never a label of a metric. ``await lease.note("row 500 of 900")``
            replaces it. A lease or wait of less than half a second writes no note.
        prefix: Start of every key; no braces.

    Raises:
        TypeError: A wrong type, a synchronous client, or a keyword of redis-py's Lock that has another name here.
        ValueError: A value out of range, or `min_uptime` with Sentinel, a Cluster or ``memory://``. Both before
            any I/O.
    """

    _kind: ClassVar[str] = "lock"

    @explains_misuse
    def __init__(
        self, client: Client, name: str, *,
        ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
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
