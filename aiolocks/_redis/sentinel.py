"""The primary that Sentinels name. Links to it are closed as soon as the Sentinels name another.

A primary that is replaced on purpose, or cut off, keeps answering for a while (up to 11 s were seen after SENTINEL
FAILOVER on Redis 7.0). Leases that it grants or renews then are lost. So all Sentinels are asked every half second
while there are links, and the newest configuration counts. A majority must answer, since each failover is known to a
majority. The connections are our own, as the user's clients of Sentinels may belong to another loop.
"""

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple, final

from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError

from .._core.replies import RawReply
from .._core.untyped import RawConnection, untyped
from .clients import Server, place_of, sentinels_of, service_of
from .connection import Connection, Endpoint, connected
from .pipeline import PendingCall, Pipeline
from .scripts import PlainCommand

_LOOK_INTERVAL = 0.5
"""Interval in seconds between the Sentinels' answer and the next request."""

_FAILOVER_INTERVAL = 0.05
"""The same during a failover: leases granted by the former primary are lost."""

_REMEMBERED = 3.0
"""Seconds for which a newer configuration counts more than an older one of a majority. Sentinels exchange it in 2 s."""

_PATIENCE = 0.5
"""Timeout in seconds for a Sentinel's reply, and for connecting to it. All are asked at the same time."""

_STATE = PlainCommand("SENTINEL", "MASTER")
"""Says the number of the configuration. Its address is the former primary's until the failover is over."""

_ADDRESS = PlainCommand("SENTINEL", "GET-MASTER-ADDR-BY-NAME")
"""From the promotion on, the Sentinel that leads the failover answers with the new address."""

Address = tuple[str, int]


@final
class SentinelPrimary(Endpoint):
    """The primary behind one pool that redis-py's `Sentinel.master_for` made."""

    fails_over = True

    def __init__(
        self, pool: SentinelConnectionPool, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]
    ) -> None:
        self._pool = pool
        self._loop = loop
        self._clock = clock
        self._sentinels = {
            place_of(sentinel.connection_pool): Pipeline(Server(sentinel.connection_pool), loop, clock, lambda: None)
            for sentinel in sentinels_of(pool)
        }
        self._links: list[tuple[Connection, Address]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looking: _Inquiry | None = None
        self._epoch = -1
        self._address: Address | None = None
        self._remembered_until = -math.inf
        """Time until which it counts more than an older configuration, which a majority may still have."""

    async def connect(self) -> RawConnection:
        """Return a connection to the primary.

        Raises:
            MasterNotFoundError: No Sentinel names a primary that it considers up.
        """
        answered = asyncio.Event()
        inquiry = _Inquiry(self._pool, lambda _: answered.set(), self._end_others)
        inquiry.begin(self._sentinels)
        await answered.wait()
        address = self._newest(inquiry)
        if address is None:
            raise MasterNotFoundError(f"no primary of {service_of(self._pool)!r}: {inquiry.why()}")
        connection = untyped(self._pool).make_connection()
        return await connected(connection, lambda: connection.connect_to(address))

    def opened(self, connection: RawConnection, link: Connection) -> None:
        """Close *link* as soon as the Sentinels name another primary than the server at its other end."""
        self._links = [(other, address) for other, address in self._links if other.lost is None]
        self._links.append((link, (connection.host, connection.port)))
        if self._timer is None and self._looking is None:
            self._look_later()

    def retry(self) -> Retry:
        return Server(self._pool).retry()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._looking = None
        self._links.clear()
        for pipeline in self._sentinels.values():
            pipeline.close()

    def detach_in_fork(self) -> None:
        for pipeline in self._sentinels.values():
            pipeline.detach_in_fork()

    def _look_later(self, *, soon: bool = False) -> None:
        self._timer = self._loop.call_later(_FAILOVER_INTERVAL if soon else _LOOK_INTERVAL, self._look)

    def _look(self) -> None:
        self._timer = None
        self._looking = _Inquiry(self._pool, self._looked, self._end_others)
        self._looking.begin(self._sentinels)  # may end at once: an eager task that connects may be refused at once

    def _looked(self, inquiry: "_Inquiry") -> None:
        if inquiry is not self._looking:  # closed meanwhile
            return
        self._looking = None
        self._look_later(soon=inquiry.failing_over)
        self._end_others(inquiry)

    def _newest(self, inquiry: "_Inquiry") -> Address | None:
        """Return the primary that *inquiry* has found, or the one found shortly before, if that is newer."""
        now = self._clock()
        if inquiry.epoch >= self._epoch or now >= self._remembered_until:
            self._epoch, self._address, self._remembered_until = inquiry.epoch, inquiry.address, now + _REMEMBERED
        return self._address

    def _end_others(self, inquiry: "_Inquiry") -> None:
        primary = self._newest(inquiry)
        if primary is not None:
            where = "{}:{}".format(*primary)
            error = RedisConnectionError(f"the Sentinels of {service_of(self._pool)!r} name another primary: {where}")
            for link, address in self._links:
                if address != primary:
                    link.close(error)


class _State(NamedTuple):
    """The primary as a Sentinel knows it."""

    flags: str
    epoch: int
    address: Address
    others: int
    """Number of other Sentinels that it knows."""

    @classmethod
    def of(cls, reply: RawReply) -> "_State":
        fields: dict[bytes, RawReply] = reply
        if not isinstance(reply, dict):  # by RESP2
            fields = dict(zip(reply[::2], reply[1::2], strict=True))
        address = fields[b"ip"].decode(), int(fields[b"port"])
        others = int(fields[b"num-other-sentinels"])
        return cls(fields[b"flags"].decode(), int(fields[b"config-epoch"]), address, others)


@final
class _Inquiry:
    """Asks all Sentinels at once. *on_result* is called when a majority has answered, or no more Sentinels will.

    *on_newer* is called when a later answer, as from the Sentinel that led the failover, has a newer configuration.
    """

    def __init__(
        self, pool: SentinelConnectionPool, on_result: Callable[["_Inquiry"], None],
        on_newer: Callable[["_Inquiry"], None],
    ) -> None:  # fmt: skip
        manager = untyped(pool).sentinel_manager
        self._fewest_others: int = manager.min_other_sentinels
        self._forced_host: str | None = getattr(manager, "_force_master_ip", None)
        self._service = service_of(pool).encode()
        self._missing = self._majority = self._answered = 0
        self._on_result: Callable[[_Inquiry], None] | None = on_result
        self._on_newer = on_newer
        self.epoch = -1
        self.address: Address | None = None
        """The primary of the newest configuration. None means that it is down, or that no Sentinel has answered."""
        self.failing_over = False
        self._said: dict[str, str] = {}
        self._states: dict[str, _State | Exception] = {}

    def begin(self, sentinels: dict[str, Pipeline]) -> None:
        self._missing, self._majority = len(sentinels), len(sentinels) // 2 + 1
        for place, pipeline in sentinels.items():
            pipeline.submit(_STATE, (self._service,), self._note, _PATIENCE, place, unsent=_PATIENCE)
            pipeline.submit(_ADDRESS, (self._service,), self._take, _PATIENCE, place, unsent=_PATIENCE)

    def why(self) -> str:
        """Return each Sentinel's reason not to name a primary."""
        return "; ".join(f"Sentinel {place}: {said}" for place, said in self._said.items()) or "there is no Sentinel"

    def _note(self, call: PendingCall, reply: RawReply) -> None:
        self._states[call.subject] = reply if isinstance(reply, Exception) else _State.of(reply)

    def _take(self, call: PendingCall, reply: RawReply) -> None:
        found = None if isinstance(reply, Exception) or reply is None else (reply[0].decode(), int(reply[1]))
        self._missing -= 1
        before = self.epoch
        state = self._states.get(call.subject)
        if not isinstance(state, _State) or found is None:
            self._said[call.subject] = str(state if isinstance(state, Exception) else reply)
        else:
            self._answered += 1
            self._read(call.subject, state, found)
        if self._on_result is not None and (self._answered >= self._majority or not self._missing):
            on_result, self._on_result = self._on_result, None
            on_result(self)
        elif self._on_result is None and self.epoch > before:
            self._on_newer(self)

    def _read(self, place: str, state: "_State", address: Address) -> None:
        flags = state.flags
        up = address != state.address or ("master" in flags and "_down" not in flags)  # in the first case: promoted
        known = state.others >= self._fewest_others
        self.failing_over |= "failover_in_progress" in flags
        self._said[place] = "{}:{} is ".format(*address) + flags if known else "it knows too few other Sentinels"
        if known and state.epoch >= self.epoch and (up or state.epoch > self.epoch):
            self.epoch = state.epoch
            self.address = (self._forced_host or address[0], address[1]) if up else None
