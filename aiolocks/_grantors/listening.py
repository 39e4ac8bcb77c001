"""How the waiters of one session are told of their turns at one server, and what is done where they cannot be.

Where they cannot, for want of a right or of a subscription where the keys are, they poll. The session tries again then,
ever less often, until the server that has the keys says that it finds the subscription.
"""

import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol, final

from redis.exceptions import NoPermissionError

from .._core import events
from .._core.keys import of_shard
from .._core.replies import check_reply
from .._core.timing import recheck_interval
from .._engine.context import Context
from .._redis.clients import lifetime_of
from .._redis.cluster import Route
from .._redis.connection import Endpoint
from .._redis.pipeline import PendingCall
from .._redis.scripts import PlainCommand
from .._redis.subscriber import Subscriber

log = logging.getLogger("aiolocks")

_FIRST_PAUSE = 1.0
"""Seconds from when a session begins to poll to its first try to be told again."""

_LONGEST_PAUSE = 4.0
"""Seconds between tries at most, where the subscription was lost or is elsewhere: that may end at any moment."""

_LONGEST_WITHOUT_RIGHTS = 60.0
"""The same where a right is missing."""


_COUNT = PlainCommand("PUBSUB", "NUMSUB")
_COUNT_OF_SHARD = PlainCommand("PUBSUB", "SHARDNUMSUB")

_POLLING_INTERVAL = 0.25
"""Seconds between re-checks of a session that cannot be told; a turn it does not notice costs others twice that."""


_MOST_ADDRESSES = 256

SessionAddress = tuple[bytes, bytes, int]
"""The name of the session that asks, the start of all channels, and the ms that its line lives without a re-check."""


class Told(Protocol):
    """What is asked here of the grantor."""

    def told(self, token: bytes, fence: int, amount: int) -> None:
        """Take a grant, or a refusal, that was addressed to a token of this session."""


class Line(Protocol):
    """What is asked here of the waiters of one name."""

    identity: SessionAddress | None

    @property
    def listening(self) -> "Listening":
        """By what they are told."""
        ...

    def recheck(self) -> None:
        """Ask how all waiters stand, now."""


@final
class Lines:
    """Where callers of a session wait, at all of its servers; by the key that all keys of the name begin with."""

    def __init__(self) -> None:
        self.queues: dict[bytes, Line] = {}
        self.servers: weakref.WeakValueDictionary[bytes, Told] = weakref.WeakValueDictionary()
        """Who asks for them, and may be told of a turn of which no caller here knows."""
        self.handing_over: set[bytes] = set()
        """Names for which the server has been asked to go on handing over."""


@final
class Listening:
    """Of one session, at one server. No timer: what polls looks when a re-check was answered."""

    def __init__(
        self, context: Context, endpoint: Endpoint, lines: Lines,
        form: Callable[[bytes], bytes] = lambda channels: channels,
        counted_by: Callable[[bytes], Route] | None = None,
    ) -> None:  # fmt: skip
        """In a Cluster, *form* returns what channels begin with at this server, by what they begin with at one that is
        alone; and *counted_by* the way to whoever has to find who has subscribed to a channel."""
        self._context = context
        self.polling = False
        self.form = form
        self.queues, self.servers, self.handing_over = lines.queues, lines.servers, lines.handing_over
        self._counted_by = counted_by or context.pipeline.route
        self._of_shards: dict[bytes, dict[Line, None]] = {}
        """Who waits at channels of a Cluster's shards, which paths with one root share, and several kinds of a name."""
        self._addresses: dict[tuple[bytes, float], SessionAddress] = {}
        self._untold = 0
        self.unheard: dict[bytes, int] = {}
        """How often in a row a re-check has found that waiters of a name were passed over; where it has."""
        self.subscriber = Subscriber(
            endpoint,
            context.loop,
            context.clock,
            on_grant=self.deliver,
            on_subscribed=self._subscribed,
            on_forbidden=self._forbidden,
            on_moved=self._moved,
        )
        self._pause = _FIRST_PAUSE
        self._longest = _LONGEST_PAUSE  # equivalent: line dropped, `begin` sets it first
        self._due = 0.0
        self._healed_at = 0.0
        self._channel = b""

    def address(self, channels: bytes, ttl: float) -> SessionAddress:
        """Return as whom the session asks where none of its callers waits, for a lease of *ttl* seconds."""
        address = self._addresses.get((channels, ttl))
        if address is None:
            if len(self._addresses) >= _MOST_ADDRESSES:
                self._addresses.clear()
            form = self.form(channels)
            self._context.introduction.introduce(channels, ttl)
            address = address_of(self._context.id, form, recheck_interval(ttl), polling=self.polling)
            self._addresses[channels, ttl] = address
        return address

    def deliver(self, token: bytes, fence: int, amount: int, base: bytes) -> None:
        """Take a grant (or refusal) that was addressed to this session."""
        request = self._context.tokens.get(token)
        server: Told | None = self.servers.get(base) if request is None else request.server
        if server is not None:
            server.told(token, fence, amount)

    def told(self) -> None:
        """Note that a turn was told."""
        self._untold = 0

    def note_unheard(self, base: bytes, unheard: bool) -> None:
        """Note whether a re-check found that the waiters of a name had been passed over."""
        if not unheard:
            self.unheard.pop(base, None)
        elif len(self.unheard) < _MOST_ADDRESSES or base in self.unheard:
            self.unheard[base] = self.unheard.get(base, 0) + 1

    def found_untold(self) -> None:
        """Note that a re-check found a turn that was not told: twice in a row, and the wake-ups' link must be dead."""
        self._untold += 1
        if self._untold >= 2 and not self.polling:
            self._untold = 0
            self.subscriber.reconnect()

    def own(self) -> list[Line]:
        """Return the queues whose names this server has."""
        return [queue for queue in self.queues.values() if queue.listening is self]

    def listen(self, channel: bytes, queue: Line) -> None:
        """Subscribe to *channel*, at which *queue* waits."""
        if of_shard(channel):
            self._of_shards.setdefault(channel, {})[queue] = None
        self.subscriber.listen(channel)

    def subscribe_anew(self, channel: bytes) -> None:
        """Take the subscription to *channel* for lost, as the server that has the name finds none."""
        if of_shard(channel):
            self.subscriber.forget(channel)
        else:
            self.subscriber.reconnect()

    def leave(self, channel: bytes, queue: Line) -> None:
        """Note that *queue* waits at *channel* no more."""
        queues = self._of_shards.get(channel, {})
        if queues.pop(queue, self) is None and not queues:
            del self._of_shards[channel]
            self.subscriber.leave(channel)

    def forget_addresses(self) -> None:
        """Work out anew as whom the session asks."""
        self._addresses.clear()
        for queue in self.own():
            queue.identity = None

    def poll(self, why: str, *, rights: bool) -> None:
        """Stop relying on wake-ups for a while: ask for turns that wait to be found. It may be for want of *rights*."""
        if self.polling:
            return
        self.polling = True
        self.forget_addresses()
        now = self._context.clock()
        self._longest = _LONGEST_WITHOUT_RIGHTS if rights else _LONGEST_PAUSE
        if now - self._healed_at > self._longest:  # what is soon broken again after each try is tried less often
            self._pause = _FIRST_PAUSE
        pause = self._put_off(now)
        if events.listeners:
            events.emit(events.Event("polling", "", "", pause))
        lifetime = lifetime_of(self._context.pool)
        if lifetime not in _warned:
            _warned.add(lifetime)
            log.warning(
                "waiters of this client poll for their turn, as they cannot be woken: %s; subscribing is tried again "
                "in %g s, and less often if that fails",
                why, pause,
            )  # fmt: skip
        self.subscriber.close()
        self.recheck_all()

    def try_again(self, channel: bytes) -> None:
        """Subscribe to *channel* if it is time to."""
        now = self._context.clock()
        if now >= self._due:
            self._put_off(now)
            self._channel = channel
            self.subscriber.listen(channel)

    def recheck_all(self) -> None:
        """Ask how all waiters stand."""
        for queue in self.own():
            queue.recheck()

    def _put_off(self, now: float) -> float:
        pause = min(self._pause, self._longest)
        self._due = now + pause
        self._pause = 2 * pause  # defect: W15-pause
        return pause

    def _subscribed(self, channel: bytes) -> None:
        """Where it polls: ask the server that has the keys whether it finds what some server has confirmed."""
        if self.polling:  # defect: W1-subscribed
            route = self._counted_by(self._channel)
            count = _COUNT_OF_SHARD if of_shard(channel) else _COUNT
            route.submit(count, (self._channel,), self._counted, route.patience)
        elif not of_shard(channel):
            self.recheck_all()
        else:
            for queue in tuple(self._of_shards.get(channel, ())):
                queue.recheck()

    def _moved(self, channel: bytes) -> None:
        for queue in self._of_shards.pop(channel, ()):
            queue.recheck()

    def _counted(self, call: PendingCall, reply: Any) -> None:
        if not self.polling or self._context.closed:
            return
        if not isinstance(reply, Exception):
            check_reply(call.command.name, reply)
        if isinstance(reply, NoPermissionError):
            self._forbidden()
        elif isinstance(reply, Exception) or not reply[1]:
            self.subscriber.close()
        else:
            self._healed_at = self._context.clock()
            self.polling = False  # defect: W15-counted
            self.forget_addresses()
            log.info("waiters of this client are woken again when it is their turn")
            self.recheck_all()

    def _forbidden(self) -> None:
        if self.polling:  # defect: W11-forbidden
            self._longest = _LONGEST_WITHOUT_RIGHTS
            self.subscriber.close()
        else:
            subscribe = "+ssubscribe" if of_shard(self.form(b"")) else "+subscribe"
            # equivalent: constant, the first pause is the same
            self.poll(f"this Redis user lacks the rights {subscribe} and &<prefix>*", rights=True)


_warned: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Of pools whose sessions poll; a session is short-lived, and the warning is worth reading once."""


def interval_of(interval: float, *, polling: bool) -> float:
    """Return the seconds between re-checks, of which every session must make as many, and one that polls more."""
    return min(interval, _POLLING_INTERVAL) if polling else interval


def address_of(session: bytes, channels: bytes, interval: float, *, polling: bool) -> SessionAddress:
    """Return as whom a session asks that looks at least every *interval* seconds."""
    interval = interval_of(interval, polling=polling)
    # equivalent: constant, no interval is under 25 ms, and it is rounded
    name = b"poll%d-%b" % (max(1, round(1000 * interval)), session) if polling else session
    return name, channels, round(3000 * interval)  # defect: W3-life
