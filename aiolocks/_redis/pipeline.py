"""Runs commands for many tasks over one link: connects when needed, and closes a link that is silent for too long.

`submit` never waits and never fails: the receiver gets the reply or the exception, exactly once. Callers retry, as
they alone know until when that makes sense.
"""

import asyncio
import copy
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, final

from redis import exceptions
from redis.asyncio.retry import Retry

from .._core import answers
from .._core.overdue_timer import OverdueTimer
from .._core.replies import UNREADABLE, RawReply, UnreadableReplyError, check_reply, unreadable
from .._core.timing import retry_delay
from .busy_poll import BusyPoll
from .connection import Connection, ConnectionCancelled, Connector, Endpoint, Receiver, open_connection
from .scripts import Arguments, Command, PlainCommand, source_of

if TYPE_CHECKING:
    from .cluster import Redirect

_SHORTEST_PATIENCE = 0.25
"""Minimum timeout in seconds for a reply whose loss blocks other callers."""

_LONGEST_GIVEN_WAY = 1.0
"""Maximum silence in seconds for which a call that `gives_way` waits along with others, which can wait much longer."""

_LONGEST_HOLD_OFF = 0.25
"""Maximum pause in seconds after a link whose replies could not be read: the next link has to renew the leases."""

FIRST_CONNECT = 2.0
_LONGEST_CONNECT = 5.0
"""Timeouts in seconds for an attempt to connect: the first, and the maximum. It starts short, as bytes that the network
has lost do not come back."""


class BaseRoute:
    """The way to the server that has a name: a `Pipeline`, or on a Cluster a `SlotRoute`."""

    __slots__ = ()

    clock: Callable[[], float]

    def submit(
        self, command: Command, args: "Arguments | ArgumentsLater", receiver: "CallReceiver", patience: float,
        subject: Any = None, reply_to: Any = None, unsent: float | None = None, soon: bool = False, whole: bool = False,
    ) -> "PendingCall":  # fmt: skip
        """Run a command once.

        Args:
            args: Its arguments, or a function that makes them from *subject* and the link when the call leaves.
            receiver: Gets the reply, or the exception in its place.
            patience: Timeout for the reply in seconds; then the link is closed.
            subject: A value for *args* and *receiver*, so that the same functions can serve many calls.
            reply_to: Another such value.
            unsent: Timeout for a link in seconds. None means *patience*. It lasts longer while there is a link that
                answers other calls.
            soon: A caller waits for the reply, so stay awake for it; see `busy_poll`.
            whole: Send all of the script. Sent by its digest, it might be sent a second time, behind later calls.
        """
        call = PendingCall(command, args, receiver, patience, subject, reply_to, self.clock(), whole)
        self.start(call, unsent, soon)
        return call

    def start(self, call: "PendingCall", unsent: float | None = None, soon: bool = False) -> None:
        """Run a call that was made just now; see `submit`."""
        raise NotImplementedError

    async def ask(
        self, command: Command, args: "Arguments | ArgumentsLater" = (), patience: float = answers.REPLY_TIMEOUT, *,
        on_reply: "CallReceiver | None" = None, unsent: float | None = None,
    ) -> RawReply:  # fmt: skip
        """Run a command once and return its reply; see `submit`.

        Args:
            on_reply: Called with the call and its reply as soon as it arrives, also when the caller has left. It
                raises one of `UNREADABLE` for a reply that Redis never gives. Left out: `check_reply`.
            unsent: Maximum number of seconds until it leaves. None means no limit while the link answers other calls.

        After a cancellation, a call that has not left never leaves: other callers may have decided otherwise by then.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RawReply] = loop.create_future()

        def receive(call: PendingCall, reply: object) -> None:
            if not isinstance(reply, Exception):
                if on_reply is None:
                    check_reply(command.name, reply)
                else:
                    on_reply(call, reply)
            answers.resolve(answer, reply)

        call = self.submit(command, args, receive, patience)
        timer = None if unsent is None else loop.call_later(unsent, call.give_up_unsent)
        try:
            return await answer
        except asyncio.CancelledError:
            call.abandon()
            raise
        finally:
            if timer is not None:
                timer.cancel()


@final
@dataclass(slots=True, eq=False, repr=False)
class PendingCall:
    """One run of a command: it waits for a link, or is on its way over `link` since `sent_at`, or was answered.

    Invariant: `receiver` is called exactly once, and is None from then on.
    """

    command: Command
    args: Any
    """Those with which it left; before that, it may be a function that makes them, as `ArgumentsLater` says."""
    receiver: "CallReceiver | None"
    patience: float
    subject: Any
    reply_to: Any
    sent_at: float
    """When it left; before that, when it was made."""
    whole: bool = False
    link: Connection | None = field(default=None, init=False)
    abandoned: bool = field(default=False, init=False)
    gives_way: bool = field(default=False, init=False)
    """Its timeout is short. While other calls wait over the same link, it waits along with them."""
    redirect: "Redirect | None" = field(default=None, init=False)
    """On a Cluster, sends the call where a refusal points."""
    due: float = field(init=False)
    """When the reply, or a link to ask over, is overdue."""

    def send(self, link: Connection, now: float) -> None:
        """Send the command over *link*. Only the first run of a script over a link needs all of it, unless `whole`."""
        self.sent_at, self.due = now, now + self.patience  # equivalent: sign, it only looks too early
        command = self.command
        try:
            if callable(self.args):
                self.args = self.args(self.subject, link)  # they stay the same if it is sent again
            args: Arguments = self.args
            if command.script in link.loaded and not self.whole:
                packed = command.evalsha(args)
            else:
                if self.whole:
                    link.resent.add(self)
                    if self.redirect is not None:
                        self.redirect.precede(link, now)
                packed = command.eval(args)
                link.loaded.add(command.script)
        except Exception as error:  # nothing has left; reported in the next turn, when `submit` has returned
            self.link = None
            asyncio.get_running_loop().call_soon(self.finish, error)
        else:
            self.link = link
            link.send(packed, self)

    def __call__(self, reply: object) -> None:
        """Take the reply, or the exception in its place."""
        if self.whole and self.link is not None:
            self.link.resent.discard(self)
        # equivalent: and/or, only exceptions are known there
        if isinstance(reply, Exception) and self.link is not None:
            if isinstance(reply, exceptions.NoScriptError) and not self.whole and not self.abandoned:
                # After SCRIPT FLUSH, or a failover. It did not run, so `sent_at` may stay: earlier than necessary is
                # safe.
                self.whole = True
                self.send(self.link, self.sent_at)
                return
            read = self._read_error(reply, self.link)
            if read is None:
                return
            reply = read
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            try:
                receiver(self, reply)
            except UNREADABLE:
                if isinstance(reply, Exception) or self.link is None:
                    raise
                error = unreadable(self.command.name, reply)
                self.link.close(error)
                receiver(self, error)  # it has recorded nothing of the reply

    def _read_error(self, error: Exception, link: Connection) -> Exception | None:
        """Return the error for the receiver, or None if the call goes to another node instead."""
        redirect = self.redirect
        if isinstance(error, exceptions.ClusterDownError) and redirect is not None:
            redirect.doubt()
        if isinstance(error, exceptions.AskError):  # or exceptions.MovedError
            if redirect is not None and redirect.follow(self, error):
                return None
            word = "MOVED" if isinstance(error, exceptions.MovedError) else "ASK"
            error = (
                answers.WrongServerError(_IN_CLUSTER) if redirect is None else answers.NotNowError(f"{word} {error}")
            )
        if isinstance(error, (exceptions.ResponseError, exceptions.BusyLoadingError)):
            # Without the arguments that Redis quotes when it does not know a command: the token is one of them.
            text, quoted, _ = str(error).partition(", with args beginning with")
            error = answers.recognized(exceptions.ResponseError(text) if quoted else error)
            if isinstance(error, exceptions.ResponseError):
                error = answers.explained(error, partial(source_of, self.command.name))
        if isinstance(error, exceptions.ConnectionError):
            # Also from a demoted primary, or a server that is still loading: the next call must look for the primary
            # again. The calls behind this one were not answered.
            link.close(exceptions.ConnectionError(str(error)) if isinstance(error, answers.NoPrimaryError) else error)
        elif _NOT_LOCAL in str(error):  # and it is unknown what it had done by then
            error = exceptions.ConnectionError("The script broke off, as the slot is being moved to another node")
        return error

    def finish(self, reply: object) -> None:
        """Call the receiver with *reply*, unless that was done."""
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver(self, reply)

    @property
    def met_silence(self) -> bool:
        """Whether its link was closed because a reply was overdue."""
        return self.link is not None and isinstance(self.link.lost, exceptions.TimeoutError)

    def then(self, go_on: Callable[[], None]) -> None:
        """Call *go_on* when this is answered, after its receiver."""
        receiver = self.receiver

        def both(call: PendingCall, reply: object) -> None:
            if receiver is not None:
                receiver(call, reply)
            go_on()

        self.receiver = both

    def abandon(self) -> None:
        """Never send the call, or not again: its undo is sent behind it, and must come last."""
        self.abandoned = True
        if self.link is None:
            self.finish(exceptions.ConnectionError("Given up before it was sent."))
            self.subject = self.reply_to = None  # the call itself stays in the queue until there is a link

    def give_up_unsent(self) -> None:
        """Never send the call, if it has not left: a full link that answers other calls can hold it back for longer."""
        if self.link is None:
            self.finish(exceptions.TimeoutError(f"Redis had no room for it within {answers.REPLY_TIMEOUT:g} s"))


ArgumentsLater = Callable[[Any, Connection], Arguments]
"""Makes the arguments of a call from its subject and the link."""

CallReceiver = Callable[[PendingCall, RawReply], object]


_SET_INFO = PlainCommand("CLIENT", "SETINFO")

_NOT_LOCAL = "attempted to access a non local key"
"""The error of a script that needs a key of the first waiter's queue, which it was not given and which was moved."""

_IN_CLUSTER = (
    "this server is a node of a Redis Cluster, and the name belongs to another node: pass a client of the Cluster, "
    "redis.asyncio.cluster.RedisCluster, or a redis+cluster:// URL"
)


@final
class Pipeline(BaseRoute):
    """The calls of one session to one server, over one link at a time.

    Invariant: every call that was submitted and not answered is in `_waiting`, or among the link's receivers.
    """

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float],
        on_lost: Callable[[], None], on_connected: Callable[[], None] = lambda: None, on_push: Receiver | None = None,
    ) -> None:  # fmt: skip
        """*on_connected* may submit calls to be sent over a new link before all that wait; *on_push* gets messages."""
        self.endpoint = endpoint
        self.pipeline = self  # every route has one
        self.clock = clock
        self._on_lost = on_lost
        self._on_connected = on_connected
        self._link: Connection | None = None
        self.ready: Connection | None = None
        """The link, while a command can leave at once: it has room, and no call waits."""
        self._connector = Connector(endpoint, partial(self._open_link, on_push), self._opened, self._not_opened)
        self._unreadable = 0
        """Number of links in a row that were closed because their replies could not be read."""
        self._unreadable_at = -math.inf
        self._connect_time = FIRST_CONNECT
        self._waiting: deque[PendingCall] = deque()
        self._overdue = OverdueTimer(loop, clock, self.unanswered, self._silent)
        self._busy_poll = BusyPoll(loop, clock)
        self._heard_at = 0.0
        """When the last reply came. Replies come in order, so the awaited ones are then on their way."""
        self.round_trip = 0.0
        """Measured, in seconds. It grows at once, and falls by a fifth at most at a time."""
        self.patience = 1.0
        """Timeout for a reply in seconds. It usually comes much sooner."""
        self.undo_patience = _SHORTEST_PATIENCE
        """Timeout for the reply to an undo in seconds. It is shorter: a lease whose undo was lost blocks other callers
        that long."""

    def start(self, call: PendingCall, unsent: float | None = None, soon: bool = False) -> None:
        now, link = call.sent_at, self.ready
        if link is not None:
            call.send(link, now)
        else:
            call.due = now + (call.patience if unsent is None else unsent)
            self._waiting.append(call)
            if self._link is None:
                self._connector.start()
        if call.due < self._overdue.next_due:
            self._overdue.arm(call.due, now)
        if soon and now < self._busy_poll.soon_until and link is not None and link.distant:
            self._busy_poll.expect(call)  # equivalent: line dropped, for speed

    def resend(self, call: PendingCall) -> None:
        """Run a call that another server has refused to run."""
        now, link = self.clock(), self.ready
        call.whole = True  # defect: I4-whole
        if link is not None:
            call.send(link, now)
        else:
            call.link = None
            call.due = now + call.patience
            self._waiting.append(call)
            if self._link is None:
                self._connector.start()
        self._overdue.arm(call.due, now)

    @property
    def stuck(self) -> bool:
        """Whether calls wait, and there is no link."""
        return self._link is None and bool(self._waiting)

    def take_waiting(self) -> list[PendingCall]:
        """Remove and return the waiting calls that may be sent elsewhere."""
        movable, others = list[PendingCall](), deque[PendingCall]()
        for call in self._waiting:
            if call.receiver is not None:
                (others if call.redirect is None else movable).append(call)
        self._waiting = others
        return movable

    def route(self, key: bytes) -> "Pipeline":
        return self  # the server has all names

    def late(self, wanted: Callable[[PendingCall], bool]) -> PendingCall | None:
        """See `SlotRoute.late`. Here no call overtakes another."""
        return None

    def report_only(self, call: PendingCall) -> None:
        """See `SlotRoute.report_only`. Here no call is sent elsewhere."""

    def undo_patience_after(self, silences: int) -> float:
        """Return the timeout for the reply to an undo, after this many that got none."""
        return min(self.undo_patience * (1 << min(silences, 6)), answers.REPLY_TIMEOUT)

    def patience_after(self, silences: int) -> float:
        """Return the timeout for a reply after this many silences: longer each time, as it may have been too short."""
        # With 4 silences it is 16 s or more, which exceeds the maximum.
        return min(self.patience * (1 << min(silences, 4)), answers.REPLY_TIMEOUT)

    def unanswered(self) -> Iterator[PendingCall]:
        """Yield the calls that are on their way or wait for a link."""
        sent: deque[Any] = self._link.receivers if self._link is not None else deque()
        return (call for calls in (sent, self._waiting) for call in calls if call.receiver is not None)

    def retry_policy(self, *, once: bool = False) -> Retry | answers.RidingOut:
        """Return a copy of the client's retry policy.

        Unless *once*, temporary refusals do not use up its retries, and neither does an outage that a failover ends.
        """
        policy = copy.deepcopy(self.endpoint.retry())
        return policy if once else answers.RidingOut(policy, self.clock, outages=self.endpoint.fails_over)

    def _heard(self, call: Any) -> None:
        """Measure the round trip: replies have come, the first to *call*, which was on its way longest."""
        self._heard_at = now = self.clock()
        took, before = now - call.sent_at, 0.8 * self.round_trip
        self._busy_poll.heard(now, took)  # equivalent: line dropped, for speed
        self.round_trip = took = took if took > before else before
        if took > _SHORTEST_PATIENCE / 4:
            self.patience = min(4 * took, answers.REPLY_TIMEOUT) if took > 0.25 else 1.0
            self.undo_patience = min(4 * took, 1.0)
        else:
            self.patience, self.undo_patience = 1.0, _SHORTEST_PATIENCE

    def detach_in_fork(self) -> None:
        """In a forked child: see `Connection.detach_in_fork`."""
        if self._link is not None:
            self._link.detach_in_fork()
        self.endpoint.detach_in_fork()

    def close(self) -> None:
        """Close the link at once, and the endpoint. A later call would open a new link."""
        self.endpoint.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the link at once. The endpoint may be shared, and stays open."""
        self._overdue.close()  # equivalent: line dropped, it would find nothing
        self._connector.stop()
        self._fail_waiting(exceptions.ConnectionError("Connection closed."))
        if self._link is not None:
            self._link.close()

    async def _open_link(self, on_push: Receiver | None) -> Connection:
        if self._unreadable:  # pause, longer each time
            since = self.clock() - self._unreadable_at
            if since >= answers.REPLY_TIMEOUT:
                self._unreadable = 0
            else:
                await asyncio.sleep(min(retry_delay(math.inf, self._unreadable), _LONGEST_HOLD_OFF) - since)
        async with asyncio.timeout(self._connect_time):
            return await open_connection(self.endpoint, on_push, self._lost, self._flow, self._heard)

    def _opened(self, link: Connection) -> None:
        self._connect_time = FIRST_CONNECT
        self._link = link
        if self._connector.stopped and not self._waiting:
            link.close()
            return
        waiting, self._waiting = self._waiting, deque()
        for said in link.library:
            self.submit(_SET_INFO, said, lambda call, reply: None, answers.REPLY_TIMEOUT)  # older servers refuse it
        self._on_connected()
        self._waiting += waiting
        self._flow()

    def _not_opened(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            self._connect_time = min(2 * self._connect_time, _LONGEST_CONNECT)
            if not isinstance(error, exceptions.RedisError):
                error = exceptions.TimeoutError("Timeout connecting to server")
        elif not isinstance(error, ConnectionCancelled):
            error = answers.connect_error(error)
        self._fail_waiting(error)

    def _flow(self) -> None:
        """Send waiting calls while the link has room. Giving up a call costs nothing until it is sent."""
        self.ready = None
        while self._waiting and self._link is not None and not self._link.full:
            call = self._waiting.popleft()
            if call.receiver is not None:
                now = self.clock()
                call.send(self._link, now)
                self._overdue.arm(call.due, now)
        if self._link is not None and not self._link.full:
            self.ready = self._link

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.finish(error)

    def _lost(self, reason: Exception) -> None:
        self._link = self.ready = None
        if isinstance(reason, UnreadableReplyError):
            self._unreadable += 1
            self._unreadable_at = self.clock()
        if self._waiting:  # held back when the link was full
            self._connector.start()
        self._on_lost()

    def _silent(self, call: PendingCall) -> None:
        """Close the link over which a reply is overdue, or give up a call that no link had room for in time."""
        reading = "Timeout reading from Redis: no reply in time"
        error = exceptions.TimeoutError(reading if self._link is not None else "Timeout connecting to server")
        quiet_since = max(call.sent_at, self._heard_at)  # defect: W6-heard
        if (call.link or self._link) is not None and self.clock() < quiet_since + call.patience:
            call.due = quiet_since + call.patience  # a link with many calls, or of a loop that was late, is not dead
            return
        if call.link is None:
            call.finish(error)
            return
        if call.gives_way:
            others = [other.due for other in self.unanswered() if other.link is call.link and not other.gives_way]
            due = min(*others, quiet_since + _LONGEST_GIVEN_WAY) if others else -math.inf
            if due > self.clock():
                call.due = due
                return
        call.link.close(error)
        call.finish(error)
