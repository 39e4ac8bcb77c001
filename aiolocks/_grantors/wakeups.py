"""Wake-ups: how each server notifies the waiters of one session, and what the session does where it cannot.

A session polls where it cannot be notified, because it lacks a right, or because its subscription is not where the keys
are. It tries to subscribe again, less and less often, until the server that has the keys finds the subscription (W15).
"""

import logging
from typing import TYPE_CHECKING, final

from redis.exceptions import NoPermissionError, ResponseError

from .._core import events
from .._core.keys import of_shard
from .._core.replies import RawReply, check_reply
from .._core.timing import recheck_interval
from .._engine.context import Context
from .._redis.clients import warn_once
from .._redis.cluster import Route, Router
from .._redis.pipeline import PendingCall, Pipeline
from .._redis.scripts import PlainCommand
from .._redis.subscriber import Subscriber

if TYPE_CHECKING:
    from .one_server import RedisGrantor
    from .session import Servers
    from .wait_queue import WaitQueue

log = logging.getLogger("aiolocks")

_FIRST_PAUSE = 1.0
"""Seconds from when a session begins to poll to its first try to subscribe again."""

_MAX_PAUSE = 4.0
"""Maximum number of seconds between tries where the subscription was lost or is elsewhere: both can end at any time."""

_MAX_PAUSE_WITHOUT_RIGHTS = 60.0
"""Maximum number of seconds between tries where a right is missing."""

_POLLING_INTERVAL = 0.25
"""Interval between re-checks of a session that polls. A grant that it does not notice costs others twice that."""

_MAX_ADDRESSES = 256

_COUNT = PlainCommand("PUBSUB", "NUMSUB")
_COUNT_OF_SHARD = PlainCommand("PUBSUB", "SHARDNUMSUB")

SessionAddress = bytes
"""The session's name, the ms that its queue lives without a re-check, and the prefix of its channels. They are one
argument of the scripts; see `libraries/address.lua`."""


class Wakeups:
    """How one server notifies the waiters of one session.

    The state is `polling`: whether re-checks replace messages. There is no timer. A session that polls tries to
    subscribe again when a re-check was answered.
    """

    def __init__(
        self, context: Context, servers: "Servers", pipeline: Pipeline,
        addresses: dict[tuple[bytes, float], SessionAddress],
    ) -> None:  # fmt: skip
        self._context = context
        self.servers = servers
        self._pipeline = pipeline
        self.polling = False
        self._shards: dict[bytes, dict[WaitQueue, None]] = {}
        """The queues of each shard channel: paths with one root share a channel, as do several kinds of one name."""
        self._addresses = addresses
        self._missed_messages = 0
        """Grants in a row that a re-check found before their message."""
        self._skipped: set[bytes] = set()
        """Names whose newest re-check found that the server had skipped this session's waiters."""
        self.subscriber = Subscriber(
            pipeline.endpoint, context.loop, context.clock, on_grant=self.deliver, on_subscribed=self._subscribed,
            on_forbidden=self._forbidden, on_moved=self._moved,
        )  # fmt: skip
        self._pause = _FIRST_PAUSE
        self._max_pause = _MAX_PAUSE  # equivalent: line dropped, `begin` sets it first
        self._due = 0.0
        """When to try to subscribe again, while polling."""
        self._healed_at = 0.0
        self._tried_channel = b""

    def prefix(self, channels: bytes) -> bytes:
        """Return the prefix of the channels at this server, by the prefix where there is no Cluster."""
        return channels

    def counter(self, channel: bytes) -> Route:
        """Return the route to the node that counts the subscribers of *channel*."""
        return self._pipeline

    def address(self, channels: bytes, ttl: float) -> SessionAddress:
        """Return the session's address for a request with this *ttl*, when no caller waits for the name here."""
        address = self._addresses.get((channels, ttl))
        if address is None:
            if len(self._addresses) >= _MAX_ADDRESSES:
                self._addresses.clear()
            self.servers.info.publish(channels, ttl)
            address = self.address_for(channels, recheck_interval(ttl))
            self._addresses[channels, ttl] = address
        return address

    def address_for(self, channels: bytes, interval: float) -> SessionAddress:
        """Return the address of a session that re-checks at least every *interval* seconds."""
        interval, session = self.interval(interval), self._context.id
        # W11: the name asks the server for the polling flag. Older versions read it there.
        # equivalent: constant, no interval is under 25 ms, and it is rounded
        name = b"poll%d-%b" % (max(1, round(1000 * interval)), session) if self.polling else session
        return b"%b %d %b" % (name, round(3000 * interval), self.prefix(channels))  # defect: W3-life

    def interval(self, interval: float) -> float:
        """Return the re-check interval, shortened while polling."""
        return min(interval, _POLLING_INTERVAL) if self.polling else interval

    def deliver(self, token: bytes, fence: int, amount: int, base: bytes) -> None:
        """Deliver a message: a grant, a refusal, or a notice to the session."""
        request = self._context.tokens.get(token)
        grantor: RedisGrantor | None = self.servers.grantors.get(base) if request is None else request.server
        if grantor is not None:
            grantor.deliver_grant(token, fence, amount)

    def message_arrived(self) -> None:
        """A grant was delivered before a re-check found it."""
        self._missed_messages = 0

    def message_missed(self) -> None:
        """A re-check found a grant without a message. After two in a row, assume a dead wake-up connection (P13)."""
        self._missed_messages += 1
        if self._missed_messages >= 2 and not self.polling:
            self._missed_messages = 0
            self.subscriber.reconnect()

    def skipped_twice(self, base: bytes, *, skipped: bool) -> bool:
        """W2: record whether a re-check found the waiters of a name *skipped*. True if two in a row did."""
        twice = skipped and base in self._skipped
        self._skipped.discard(base)
        if skipped and not twice and len(self._skipped) < _MAX_ADDRESSES:
            self._skipped.add(base)
        return twice

    def own_queues(self) -> "list[WaitQueue]":
        """Return the queues of names that this server has."""
        return [queue for queue in self.servers.queues.values() if queue.wakeups is self]

    def subscribe(self, channel: bytes, queue: "WaitQueue") -> None:
        """Subscribe to *channel*, which notifies *queue*."""
        if of_shard(channel):
            self._shards.setdefault(channel, {})[queue] = None
        self.subscriber.listen(channel)

    def resubscribe(self, channel: bytes, queue: "WaitQueue") -> None:
        """W1: subscribe to *channel* again, as the server that has the name finds no subscription."""
        if of_shard(channel):
            self.subscriber.forget(channel)
        else:
            self.subscriber.reconnect()
        self.subscribe(channel, queue)

    def unsubscribe(self, channel: bytes, queue: "WaitQueue") -> None:
        """Unsubscribe *queue* from *channel*. A channel that is not of a shard stays: other names use it."""
        queues = self._shards.get(channel, {})
        if queues.pop(queue, self) is None and not queues:
            del self._shards[channel]
            self.subscriber.leave(channel)

    def retry_subscribing(self, channel: bytes) -> None:
        """W15: try to subscribe to *channel* if that is due."""
        now = self._context.clock()
        if now >= self._due:
            self._put_off(now)
            self._tried_channel = channel
            self.subscriber.listen(channel)

    def forget_addresses(self) -> None:
        """Make every address of the session again before its next use."""
        self._addresses.clear()
        for queue in self.own_queues():
            queue.forget_address()

    def poll(self, why: str, *, rights: bool) -> None:
        """W11: begin to poll. *rights*: because a right may be missing."""
        if self.polling:
            return
        self.polling = True
        self.forget_addresses()
        now = self._context.clock()
        self._max_pause = _MAX_PAUSE_WITHOUT_RIGHTS if rights else _MAX_PAUSE
        if now - self._healed_at > self._max_pause:  # a subscription that soon breaks again is tried less often
            self._pause = _FIRST_PAUSE
        pause = self._put_off(now)
        if events.listeners:
            events.emit(events.Event("polling", "", "", pause))
        warn_once(
            self._context.pool, "polling",
            "waiters of this client poll for their turn, as they cannot be woken: %s; subscribing is tried again "
            "in %g s, and less often if that fails",
            why, pause,
        )  # fmt: skip
        self.subscriber.close()
        self.recheck_all()

    def recheck_all(self) -> None:
        for queue in self.own_queues():
            queue.recheck()

    def _put_off(self, now: float) -> float:
        pause = min(self._pause, self._max_pause)
        self._due = now + pause
        self._pause = 2 * pause  # defect: W15-pause
        return pause

    def _subscribed(self, channel: bytes) -> None:
        """While polling, ask the server that has the keys whether it finds the subscription that is confirmed now."""
        if self.polling:  # defect: W1-subscribed
            route = self.counter(self._tried_channel)
            count = _COUNT_OF_SHARD if of_shard(channel) else _COUNT
            route.submit(count, (self._tried_channel,), self._counted, route.pipeline.patience)
        elif not of_shard(channel):
            self.recheck_all()
        else:
            for queue in tuple(self._shards.get(channel, ())):
                queue.recheck()

    def _moved(self, channel: bytes) -> None:
        for queue in self._shards.pop(channel, ()):
            queue.recheck()

    def _counted(self, call: PendingCall, reply: RawReply) -> None:
        if not self.polling or self._context.closed:
            return
        if not isinstance(reply, Exception):
            check_reply(call.command.name, reply)
        if isinstance(reply, NoPermissionError):
            self._forbidden(reply)
        elif isinstance(reply, Exception) or not reply[1]:
            self.subscriber.close()
        else:
            self._healed_at = self._context.clock()
            self.polling = False  # defect: W15-counted
            self.forget_addresses()
            log.info("waiters of this client are woken again when it is their turn")
            self.recheck_all()

    def _forbidden(self, error: ResponseError) -> None:
        if self.polling:  # defect: W11-forbidden
            self._max_pause = _MAX_PAUSE_WITHOUT_RIGHTS
            self.subscriber.close()
        elif isinstance(error, NoPermissionError):
            subscribe = "+ssubscribe" if of_shard(self.prefix(b"")) else "+subscribe"
            # equivalent: constant, the first pause is the same
            self.poll(f"this Redis user lacks the rights {subscribe} and &<prefix>*", rights=True)
        else:
            # equivalent: constant, the first pause is the same
            self.poll("a Cluster older than Redis 7 has no channels for its slots", rights=True)


@final
class ClusterWakeups(Wakeups):
    """How one node of a Cluster notifies the waiters for names that are on this node."""

    def __init__(self, context: Context, servers: "Servers", pipeline: Pipeline, router: Router) -> None:
        super().__init__(context, servers, pipeline, {})
        self._router = router

    def prefix(self, channels: bytes) -> bytes:
        return channels + b"{"  # every name has a channel of its own, in its slot

    def counter(self, channel: bytes) -> Route:
        return self._router.route(channel)


def name_in(address: SessionAddress) -> bytes:
    """Return the session's name in its *address*."""
    return address.partition(b" ")[0]
