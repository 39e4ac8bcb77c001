"""Runs scripts for many tasks over one link: connects when needed, notices silence, and knows what is ambiguous.

Submitting never waits and never fails; its receiver gets the reply or the exception, exactly once. Retrying is left
to the caller, which alone knows until when it makes sense.
"""

import asyncio
import copy
import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, final

from redis.asyncio.retry import Retry
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.answers import (
    REPLY_TIMEOUT,
    NoPrimaryError,
    NotNowError,
    RidingOut,
    WrongServerError,
    connect_error,
    explained,
    recognized,
)
from .._core.background import background
from .._core.overdue_timer import OverdueTimer
from .._core.replies import UNREADABLE, UnreadableReplyError, unreadable
from .._core.timing import retry_delay
from .busy_poll import BusyPoll
from .connection import Connection, ConnectionCancelled, Endpoint, Receiver, open_connection
from .scripts import Arguments, Command, PlainCommand, pack, source_of

_SHORTEST_PATIENCE = 0.25
"""The least time in seconds to wait for a reply whose loss holds up other callers."""

_LONGEST_GIVEN_WAY = 1.0
"""The longest silence in seconds during which such a call waits along with others, which may wait much longer."""

_LONGEST_HOLD_OFF = 0.25
"""Maximum pause in seconds after a link whose answers could not be read: the next link has to renew the leases."""

FIRST_CONNECT = 2.0
_LONGEST_CONNECT = 5.0
"""Seconds for one attempt to connect. It starts short, since bytes swallowed by the network do not come back."""


@final
class PendingCall:
    """One run of a script: waiting for a link, or on its way over `link` since `sent_at`, or answered."""

    __slots__ = (
        "abandoned", "args", "asking", "bound", "due", "gives_way", "link", "patience", "receiver", "redirects",
        "route", "sent_at", "subject", "tell", "via", "whole",
    )  # fmt: skip

    sent_at: float
    due: float
    """When the reply, or a link to ask over, is overdue."""
    subject: Any
    tell: Any
    """For the caller's *args* and *receiver*, which can so serve many calls."""
    route: "Redirecting"
    """In a Cluster: what sends it where a refusal points. The next three are for this alone."""
    redirects: int
    asking: bool
    via: "Pipeline"

    def __init__(
        self, bound: Command, args: "Arguments | Callable[[Any, Connection], Arguments]", receiver: "CallReceiver",
        patience: float, subject: Any, tell: Any,
    ) -> None:  # fmt: skip
        self.bound = bound
        self.args = args
        self.receiver: CallReceiver | None = receiver
        self.patience = patience
        self.subject, self.tell = subject, tell
        self.link: Connection | None = None
        self.whole = self.abandoned = False
        self.gives_way = False
        """It is waited for only briefly; but while other calls wait over the same link, it waits along with them."""

    def send(self, link: Connection, now: float) -> None:
        self.sent_at, self.due = now, now + self.patience  # equivalent: sign, it only looks too early
        bound, args = self.bound, self.args
        try:
            if callable(args):
                args = self.args = args(self.subject, link)  # the same if it is sent once more
            if bound.name in link.loaded and not self.whole:
                packed = bound.evalsha(args)
            else:
                if self.whole:
                    link.resent.add(self)
                    if getattr(self, "asking", False):
                        link.send(_ASKING, _Asking(now, self.route))
                packed = bound.eval(args)
                link.loaded.add(bound.name)
        except Exception as error:  # nothing has left; told in the next turn, when `submit` has returned
            self.link = None
            asyncio.get_running_loop().call_soon(self.finish, error)
        else:
            self.link = link
            link.send(packed, self)

    def __call__(self, reply: object) -> None:
        """Take the reply, or what came in its place."""
        if self.whole and self.link is not None:
            self.link.resent.discard(self)
        # equivalent: and/or, only exceptions are known there
        if isinstance(reply, Exception) and self.link is not None:
            if isinstance(reply, NoScriptError) and not self.whole and not self.abandoned:
                # SCRIPT FLUSH, or another server took over. It was not run, so `sent_at` may stay: it is earlier than
                # necessary, which is safe.
                self.whole = True
                self.send(self.link, self.sent_at)
                return
            route: Redirecting | None = getattr(self, "route", None)
            if isinstance(reply, ClusterDownError) and route is not None:
                route.doubt(self)
            if isinstance(reply, AskError):  # also of one that was moved
                if route is not None and route.redirect(self, reply):
                    return
                word = "MOVED" if isinstance(reply, MovedError) else "ASK"
                reply = WrongServerError(_IN_CLUSTER) if route is None else NotNowError(f"{word} {reply}")
            if isinstance(reply, (ResponseError, BusyLoadingError)):
                reply = recognized(_discreet(reply))
                if isinstance(reply, ResponseError):
                    reply = explained(reply, partial(source_of, self.bound.name))
            if isinstance(reply, RedisConnectionError):
                # Also from a demoted primary, or one that is still loading: the next call must look for the primary
                # anew. The calls behind this one were not answered.
                self.link.close(RedisConnectionError(str(reply)) if isinstance(reply, NoPrimaryError) else reply)
            elif _NOT_LOCAL in str(reply):  # and nobody knows what it had done by then
                reply = RedisConnectionError("The script broke off, as the slot is being moved to another node")
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            try:
                receiver(self, reply)
            except UNREADABLE:
                if isinstance(reply, Exception) or self.link is None:
                    raise
                error = unreadable(self.bound.name, reply)
                self.link.close(error)
                receiver(self, error)  # it has recorded nothing of the reply

    def finish(self, reply: object) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver(self, reply)

    def then(self, go_on: Callable[[], None]) -> None:
        """Call *go_on* as well when this is answered, behind its receiver."""
        receiver = self.receiver

        def both(call: PendingCall, reply: object) -> None:
            if receiver is not None:
                receiver(call, reply)
            go_on()

        self.receiver = both

    def drop(self) -> None:
        """Give the call up: never send it, or not again.

        Its undo is sent behind it, and no second sending may come after that.
        """
        self.abandoned = True
        if self.link is None:
            self.finish(RedisConnectionError("Given up before it was sent."))
            self.subject = self.tell = None  # the call itself stays in line until there is a link


CallReceiver = Callable[[PendingCall, object], None]


class Redirecting(Protocol):
    """What knows where else a call may go."""

    slot: int

    def redirect(self, call: PendingCall, error: AskError) -> bool:
        """Send *call* to where its answer points; False if it is to be told instead."""
        ...

    def doubt(self, call: PendingCall) -> None:
        """Note that the node which *call* went to says that it cannot serve its slots."""

    def may_not_ask(self) -> None:
        """Note that the user lacks the right to ASKING."""


def _ignore(call: PendingCall, reply: object) -> None:
    """Ignore the answer to CLIENT SETINFO, which older servers refuse."""


_SET_INFO = PlainCommand("CLIENT", "SETINFO")

_ASKING = pack(("ASKING",))

_NOT_LOCAL = "attempted to access a non local key"
"""How a script ends that needs a key of the first waiter's line, which it was not given, as that has gone already."""

_IN_CLUSTER = (
    "this server is a node of a Redis Cluster, and the name belongs to another node: pass a client of the Cluster, "
    "redis.asyncio.cluster.RedisCluster, or a redis+cluster:// URL"
)


@final
class _Asking:
    """What stands before a call that goes to where a slot is being moved to; its answer may be that it is forbidden."""

    receiver = None

    def __init__(self, sent_at: float, route: "Redirecting") -> None:
        self.sent_at = sent_at
        self._route = route

    def __call__(self, reply: object) -> None:
        if isinstance(reply, NoPermissionError):
            self._route.may_not_ask()


def _discreet(error: RedisError) -> RedisError:
    """Leave out the arguments that Redis quotes when it does not know a command: the token is one of them."""
    text, quoted, _ = str(error).partition(", with args beginning with")
    return ResponseError(text) if quoted else error


@final
class Pipeline:
    """The scripts of one session, over one link at a time.

    Invariant: every call that was submitted and not answered is in `_waiting`, or among the link's receivers.
    """

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float],
        on_lost: Callable[[], None], on_connected: Callable[[], None] = lambda: None, on_push: Receiver | None = None,
    ) -> None:  # fmt: skip
        """*on_connected* may submit what is to be sent over a new link before all that waits for one; *on_push* gets
        what answers no request."""
        self.endpoint = endpoint
        self.loop = loop
        self._clock = clock
        self._on_lost = on_lost
        self._on_connected = on_connected
        self._on_push = on_push
        self._link: Connection | None = None
        self.ready: Connection | None = None
        """The link, while a command can leave at once: it has room, and no call waits."""
        self._connecting = self._closing = False
        self._unreadable = 0
        """Number of links in a row that were closed because their answers could not be read."""
        self._unreadable_at = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._connect_time = FIRST_CONNECT
        self._waiting: deque[PendingCall] = deque()
        self._overdue = OverdueTimer(loop, clock, self.unanswered, self._silent)
        self._busy_poll = BusyPoll(loop, clock)
        self._heard_at = 0.0
        """When the last reply came. Replies come in order, so the awaited ones are then on their way."""
        self.round_trip = 0.0
        self.patience = 1.0
        """Seconds to wait for a reply; it usually comes much sooner."""
        self.undo_patience = _SHORTEST_PATIENCE
        """The same for the answer to an undo; shorter, as a lease whose undo was lost keeps others out for that
        long."""

    def submit(
        self, bound: Command, args: Arguments | Callable[[Any, Connection], Arguments], receiver: CallReceiver,
        patience: float, subject: Any = None, tell: Any = None, unsent: float | None = None, soon: bool = False,
    ) -> PendingCall:  # fmt: skip
        """Run a script once.

        Args:
            bound, args: What to run; *args* may be made when it leaves, of its *subject* and the link.
            receiver: Gets the reply, or the exception that came in its place.
            patience: Seconds to wait for the reply; then the link is given up.
            subject, tell: What the call is about, and whom to tell; only *args* and *receiver* use them.
            unsent: Seconds to wait for a link; left out: *patience*. Longer while there is a link that answers other
                calls.
            soon: A caller waits for the reply: stay awake for it, see `busy_poll`.
        """
        now, link = self._clock(), self.ready
        call = PendingCall(bound, args, receiver, patience, subject, tell)
        if link is not None:
            call.send(link, now)
        else:
            call.sent_at, call.due = now, now + (patience if unsent is None else unsent)
            self._waiting.append(call)
            if self._link is None:
                self._connect()
        if call.due < self._overdue.next_due:
            self._overdue.arm(call.due, now)
        if soon and link is not None and link.distant:
            self._busy_poll.expect(call)  # equivalent: line dropped, for speed
        return call

    def resend(self, call: PendingCall) -> None:
        """Run what another server was asked, and has not run."""
        now, link = self._clock(), self.ready
        call.via, call.whole = self, True  # defect: I4-whole
        if link is not None:
            call.send(link, now)
        else:
            call.link = None
            call.due = now + call.patience
            self._waiting.append(call)
            if self._link is None:
                self._connect()
        self._overdue.arm(call.due, now)

    @property
    def stuck(self) -> bool:
        """Whether calls wait, and there is no link."""
        return self._link is None and bool(self._waiting)

    def take_waiting(self) -> list[PendingCall]:
        """Return the calls that wait and may be sent elsewhere; they wait here no more."""
        movable, others = list[PendingCall](), deque[PendingCall]()
        for call in self._waiting:
            if call.receiver is not None:
                (movable if hasattr(call, "route") else others).append(call)
        self._waiting = others
        return movable

    def route(self, base: bytes) -> "Pipeline":
        """Return itself: the server has all names. A `Router` has more to choose from."""
        return self

    @property
    def pipeline(self) -> "Pipeline":
        """Itself, as of any `Route`."""
        return self

    def late(self, wanted: Callable[[PendingCall], bool]) -> PendingCall | None:
        """See `SlotRoute.late`: all go the same way here."""
        return None

    def report_only(self, call: PendingCall) -> None:
        """See `SlotRoute.report_only`: nothing here sends a call elsewhere."""

    def undo_patience_after(self, silences: int) -> float:
        """Return the seconds to wait for the answer to an undo, after so many that got no answer."""
        return min(self.undo_patience * (1 << min(silences, 6)), REPLY_TIMEOUT)

    def patience_after(self, silences: int) -> float:
        """Return the seconds to wait after so many silences: longer each time, as the wait may have been too short."""
        return min(self.patience * (1 << min(silences, 4)), REPLY_TIMEOUT)  # 16 times a second or more exceeds it

    def unanswered(self) -> Iterator[PendingCall]:
        """Yield the calls that are on their way, or wait for a link."""
        sent: deque[Any] = self._link.receivers if self._link is not None else deque()
        return (call for calls in (sent, self._waiting) for call in calls if call.receiver is not None)

    def retry_policy(self, *, once: bool = False) -> Retry | RidingOut:
        """Return a copy of the retry policy that the user gave the client.

        Unless the caller asks *once*, a request that Redis cannot run just now is repeated, and that does not count;
        nor does an outage that ends when another server takes over.
        """
        policy = copy.deepcopy(self.endpoint.retry())
        return policy if once else RidingOut(policy, self._clock, outages=self.endpoint.fails_over)

    def _heard(self, call: Any) -> None:
        """Note that replies have come, the first of them to *call*, which was under way longest."""
        self._heard_at = now = self._clock()
        took, before = now - call.sent_at, 0.8 * self.round_trip
        self._busy_poll.heard(now, took)  # equivalent: line dropped, for speed
        self.round_trip = took = took if took > before else before
        if took > _SHORTEST_PATIENCE / 4:
            self.patience = min(4 * took, REPLY_TIMEOUT) if took > 0.25 else 1.0
            self.undo_patience = min(4 * took, 1.0)
        else:
            self.patience, self.undo_patience = 1.0, _SHORTEST_PATIENCE

    def detach_in_fork(self) -> None:
        """In a forked child: see `Connection.detach_in_fork`."""
        if self._link is not None:
            self._link.detach_in_fork()
        self.endpoint.detach_in_fork()

    def close(self) -> None:
        """Close the link at once, and what is kept to look where to connect. A later call would open a new one."""
        self.endpoint.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the link at once; what is kept to look where to connect is others' too."""
        self._overdue.close()  # equivalent: line dropped, it would find nothing
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        self._fail_waiting(RedisConnectionError("Connection closed."))
        if self._link is not None:
            self._link.close()

    def _connect(self) -> None:
        if not self._connecting:
            self._connecting, self._closing = True, False  # equivalent: True, the line is not empty then
            task = background(self._open_link())
            if self._connecting:  # an eager task may be done already
                self._task = task

    async def _open_link(self) -> None:
        error: Exception
        try:
            if self._unreadable:
                await self._hold_off()
            async with asyncio.timeout(self._connect_time):
                link = await open_connection(self.endpoint, self._on_push, self._lost, self._flow, self._heard)
        except TimeoutError as late:
            self._connect_time = min(2 * self._connect_time, _LONGEST_CONNECT)
            error = late if isinstance(late, RedisError) else RedisTimeoutError("Timeout connecting to server")
            self.endpoint.unreachable()
        except Exception as failure:
            error = connect_error(failure)
            self.endpoint.unreachable()
        except asyncio.CancelledError:
            self._connected()
            self._fail_waiting(ConnectionCancelled("Connecting was cancelled."))
            raise
        else:
            self._connected()
            self._connect_time = FIRST_CONNECT
            self._link = link
            if self._closing and not self._waiting:  # `wait_for` before Python 3.12 may swallow a cancellation
                link.close()
            else:
                waiting, self._waiting = self._waiting, deque()
                for said in link.library:
                    self.submit(_SET_INFO, said, _ignore, REPLY_TIMEOUT)
                self._on_connected()
                self._waiting += waiting
                self._flow()
            return
        self._connected()
        self._fail_waiting(error)

    async def _hold_off(self) -> None:
        """Pause after links whose answers could not be read, longer each time."""
        since = self._clock() - self._unreadable_at
        if since >= REPLY_TIMEOUT:
            self._unreadable = 0
        else:
            await asyncio.sleep(min(retry_delay(math.inf, self._unreadable), _LONGEST_HOLD_OFF) - since)

    def _connected(self) -> None:
        self._connecting = False
        self._task = None

    def _flow(self) -> None:
        """Send waiting calls while the link has room: a call that is not sent yet can still be given up at no cost."""
        self.ready = None
        while self._waiting and self._link is not None and not self._link.full:
            call = self._waiting.popleft()
            if call.receiver is not None:
                now = self._clock()
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
            self._unreadable_at = self._clock()
        if self._waiting:  # held back when the link was full
            self._connect()
        self._on_lost()

    def _silent(self, call: PendingCall) -> None:
        """Give up the link over which a reply is overdue, or a call that waits too long for a link with room for it."""
        reading = "Timeout reading from Redis: no reply in time"
        error = RedisTimeoutError(reading if self._link is not None else "Timeout connecting to server")
        quiet_since = max(call.sent_at, self._heard_at)  # defect: W6-heard
        if (call.link or self._link) is not None and self._clock() < quiet_since + call.patience:
            call.due = quiet_since + call.patience  # a crowd, or a loop that was late, is not a dead link
            return
        if call.link is None:
            call.finish(error)
            return
        if call.gives_way:
            others = [other.due for other in self.unanswered() if other.link is call.link and not other.gives_way]
            due = min(*others, quiet_since + _LONGEST_GIVEN_WAY) if others else -math.inf
            if due > self._clock():
                call.due = due
                return
        call.link.close(error)
        call.finish(error)
