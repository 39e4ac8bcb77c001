"""The waiters of one session for one name, and the re-checks that keep their places.

A re-check is the session's sign of life, the cure for lost wake-ups, and the clock that grants are counted from: one
request at a time, in which every token is listed and answered. It never creates a place in the queue; a token that
the server does not know asks anew, with its old ticket. Since it tells so much, a request that joins other waiters
needs no more than a ticket for an answer, and is no sign of life: that saves 4 of the 12 commands that it costs.
"""

import asyncio
import logging
import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, final

from redis.exceptions import RedisError, ResponseError

from .._core.errors import LockError
from .._core.keys import Keys, of_shard
from .._core.replies import check_numbers, grants_in
from .._core.timing import MIN_RECHECK_INTERVAL, patience, recheck_delay, recheck_interval, retry_delay
from .._engine.context import Context
from .._engine.request import ENDLESS, Answer, Granted, Request, WithdrawnError
from .._redis.pipeline import CallReceiver, PendingCall
from .._redis.router import Route
from .._redis.scripts import Arguments
from . import endless
from .listening import Listening, SessionAddress, Told, address_of, interval_of

if TYPE_CHECKING:
    from .replication import Replication

log = logging.getLogger("aiolocks")

_LONGEST_LIST = 250
"""Waiters per re-check: no script keeps the server from all others for long."""

_LONGEST_INTERVAL = recheck_interval(float("inf"))


_TOO_LARGE = 2**53
"""No fencing token reaches it. A ticket that does, from damaged keys, may come as a negative number: as a grant."""


def _check(reply: Any, count: int) -> None:
    """Raise unless *reply* is a valid one to a re-check of *count* waiters. Called before any of it is recorded."""
    subscribers, busy_ms, fence, passed_over, answers, grants, *limit = reply
    check_numbers(subscribers, busy_ms, fence, passed_over, *answers, *limit)
    grants_in(grants)
    if len(answers) != count or any(answer <= -_TOO_LARGE for answer in answers):
        raise ValueError


class Asked(Told, endless.Asked, Protocol):
    """What is asked here of the grantor."""

    def grant(self, request: Request) -> "asyncio.Future[Answer]":
        """Ask for *request* anew."""
        ...

    def submit_recheck(
        self, identity: "SessionAddress", entries: Sequence[bytes], receive: CallReceiver, patience: float
    ) -> None:
        """Send one re-check."""

    def deliver(self, grants: list[Any] | int) -> object:
        """Pass on the grants in its reply."""

    def channel(self) -> bytes:
        """Return where this session is told of its turns."""
        ...

    def route(self) -> Route:
        """Return the way to the server."""
        ...

    def listening(self) -> Listening:
        """Return by what waiters at that server are told."""
        ...


@final
class WaitQueue:
    """The waiters of one name, from the first to the last: then the next to wait begins another. The timer of re-checks
    runs while there are any, and the session knows it for as long."""

    def __init__(self, context: Context, listening: Listening, server: Asked, keys: Keys) -> None:
        self._context = context
        self.listening = listening
        self._server = server
        self._base = keys.base
        self._channels = keys.channels
        self.identity: SessionAddress | None = None
        """What `identify` has returned; None if that changed. Looked at first, as each request needs it."""
        self._names: set[bytes] = set()
        """Under which the session has asked for those who wait; more than one only when it polls, see `identify`."""
        self.expected_ttl: float | None = None
        """The TTL last noted since the line was empty."""
        self.waiting: dict[bytes, Request] = {}
        self._asking_anew: set[bytes] = set()
        """Who asks for an old place at this moment."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._on_their_way = 0
        self._once_more = False
        self._failures = 0
        self._failing_since: float | None = None
        self._stood_at = context.clock()
        """When the newest re-check left that was answered, or the line began: a waiter that is found to be passed over
        has been so since."""
        self._interval = _LONGEST_INTERVAL
        self._told: Arguments | None = None
        """What the server was last told of this session here."""
        self._one_holder = keys.family in {"lock", "exact"}
        self._endless_since: float | None = None
        """When a re-check first found a lease without an expiry; infinite once that was looked into."""
        self._busy_ms = -1
        """How long the lease in the way lasted when that was last told."""

    def interval(self) -> float:
        """Return the longest this line goes without a re-check: by the shortest TTL since it was last empty."""
        return interval_of(self._interval, polling=self.listening.polling)

    def identify(self) -> "SessionAddress":
        """Return the `identity`. A session that cannot be told says in its name how often it looks."""
        context = self._context
        if self.identity is None:
            listening = self.listening
            form = listening.form(self._channels)
            self.identity = address_of(context.id, form, self._interval, polling=listening.polling)
            formers, self._names = self._names - {self.identity[0]}, {self.identity[0]}  # defect: W11-formers
            for former in sorted(formers):
                context.loop.call_soon(self._move, former, context.clock() + 3 * _LONGEST_INTERVAL)
        return self.identity

    def _move(self, former: bytes, until: float) -> None:
        """Leave the line under a *former* name, and ask for each waiter's old place under the new one, in one go.

        In this order: a waiter in two lines could be granted twice, and the second grant would change the first.
        """
        self._abandon(former, until)
        for request in list(self.waiting.values()):
            self._send_anew(request)  # defect: W15-move

    def _abandon(self, former: bytes, until: float) -> None:
        """Let the line under a former name be dead at once, and not only from *until* on.

        Turns would still go there, and to those who have left the line under the new name since.
        """

        def receive(call: PendingCall, reply: Any) -> None:
            if not isinstance(reply, Exception):
                _check(reply, 0)
                self._server.deliver(reply[5])
            elif call.link is not None and not isinstance(reply, ResponseError):  # ahead of whatever is sent next
                self._abandon(former, until)
            else:
                self._context.loop.call_later(MIN_RECHECK_INTERVAL, self._abandon, former, until)

        if not self._context.closed and self._context.clock() < until:
            patience = self._server.route().patience
            self._server.submit_recheck((former, self.listening.form(self._channels), 0), (), receive, patience)

    def expect(self, request: Request) -> None:
        """Note the TTL of a request about to be made, which bounds how long the session may keep silent."""
        self.expected_ttl = request.ttl  # equivalent: line dropped, for speed
        interval = recheck_interval(request.ttl)
        if interval < self._interval or not self.waiting:  # equivalent: comparison, for speed
            self._look_every(interval)

    def _look_every(self, interval: float) -> None:
        if interval != self._interval:
            self._interval = interval
            self.identity = None
            if self._timer is not None:  # a shorter one counts at once: the server is told it with the next request
                self._schedule(interval)

    def knows(self, identity: "SessionAddress") -> bool:
        """Whether the server has been told that it is *identity* who asks, and for how long its word is good."""
        return self._told == identity  # defect: W3-told

    def join(self, request: Request, busy_ms: int, subscribers: int, told: Arguments | None = None) -> None:
        """Let a request wait; *told*: who the server was told that it is."""
        current = cast("dict[bytes, WaitQueue]", self.listening.queues).setdefault(self._base, self)
        if current is not self:  # all had left this one, and others wait since
            current.join(request, busy_ms, subscribers, told)
            return
        if not self.waiting:
            self.listening.servers[self._base] = self._server
        if told is not None:
            self._told, self._busy_ms = told, busy_ms
            self._names.add(cast("bytes", told[0]))
        self.waiting[request.token] = request
        self._look_every(min(self._interval, recheck_interval(request.ttl)))  # defect: W3-shortest
        if len(self._names) > 1:  # they asked at the same time, before there was a line
            self.identity = None
            self.identify()
        self._listen(subscribers)
        # equivalent: <= + constant, for speed
        if self._timer is None or busy_ms < 1000 * self._interval:  # else the re-check that is due comes sooner anyway
            self._schedule(self._delay(busy_ms))

    def join_others(self, request: Request) -> None:
        """Let a request wait beside others, unless they have left meanwhile."""
        request.busy_for_ms(self._busy_ms)
        if self.waiting:
            self.waiting[request.token] = request
        else:
            self.join(request, -1, 1)  # equivalent: 2 (second), any number but 0

    def leave(self, request: Request) -> None:
        if self.waiting.pop(request.token, None) is not None and not self.waiting:
            if self.listening.queues.get(self._base) is self:
                del self.listening.queues[self._base]
                self.listening.leave(self._server.channel(), self)
            self.expected_ttl = None
            self._stop_timer()

    def stop(self, error: Exception) -> None:
        """Tell every waiter that the session has ended."""
        for request in list(self.waiting.values()):
            self.leave(request)
            request.fail(error)

    def follow(self) -> None:
        """Wait at another server, if that has the name now. What was known of the former's channel counts no more."""
        listening = self._server.listening()
        if listening is self.listening:
            return
        self.listening.unheard.pop(self._base, None)
        self.listening.leave(self._server.channel(), self)
        self.listening = listening
        self.identity = self._told = None
        self.recheck()

    def recheck(self) -> None:
        """Ask how all waiters stand, now; after the re-check on its way, if there is one."""
        self._stop_timer()
        if self._on_their_way:
            self._once_more = True
            return
        requests = list(self.waiting.values())
        for start in range(0, len(requests), _LONGEST_LIST):
            self._ask(requests[start : start + _LONGEST_LIST])

    def look_again(self, busy_ms: int) -> None:
        """Note that what is in the way ends in so many ms, and look then."""
        if self.waiting:
            self._busy_ms = busy_ms
            if self._on_their_way:  # it may have been answered before that was known
                self._once_more = True
            else:
                self._schedule(self._delay(busy_ms))

    def hand_over(self) -> None:
        """Have the server go on handing over: it had no time for all that may be free.

        If that is lost, the next re-check of any waiter goes on.
        """

        def receive(call: PendingCall, reply: Any) -> None:
            if not isinstance(reply, Exception):
                _check(reply, 0)
            listening.handing_over.discard(self._base)
            if not isinstance(reply, Exception):
                self._server.deliver(reply[5])

        listening = self.listening
        if self._base not in listening.handing_over and not self._context.closed:
            listening.handing_over.add(self._base)
            self._context.schedule_idle_close()
            self._server.submit_recheck(self.identify(), (), receive, self._server.route().patience)

    def _ask(self, requests: Sequence[Request]) -> None:
        def receive(call: PendingCall, reply: object) -> None:
            if not isinstance(reply, Exception):
                _check(reply, len(requests))
            self._on_their_way -= 1
            if isinstance(reply, Exception):
                self._failed(call, reply)
            else:
                self._failures = 0
                self._failing_since = None
                self._told = identity
                self._read(call, reply, requests)

        self._on_their_way += 1
        identity = self.identify()
        self._server.submit_recheck(
            identity,
            [request.entry() for request in requests],
            receive,
            patience(self.interval(), self._server.route().round_trip),
        )

    def _read(self, call: PendingCall, reply: Any, requests: Sequence[Request]) -> None:
        subscribers, busy_ms, fence, passed_over, answers, grants, *limit = reply
        self._busy_ms = busy_ms
        if busy_ms != ENDLESS:
            self._endless_since = None
        elif self._one_holder:
            self._note_endless(call.sent_at, requests)
        for request, answer in zip(requests, answers, strict=True):  # defect: P1-recheck
            if request.turn.done():  # defect: W8-left
                continue
            if answer > 0:
                request.queued(answer, call.sent_at, fence)
                request.busy_for_ms(busy_ms)
                objections = (extension.objection(limit[0]) for extension in request.extensions if limit)
                objection = next((found for found in objections if found is not None), None)
                if objection is not None:
                    self.leave(request)
                    request.fail(objection)
            elif answer < 0:
                self.listening.found_untold()
                self.leave(request)
                request.grant(-answer, call.sent_at)
            else:
                self._send_anew(request)  # defect: W8-anew
        self._server.deliver(grants)
        self._answered(call, busy_ms, subscribers, bool(passed_over))

    def _note_endless(self, now: float, requests: Sequence[Request]) -> None:
        """Look into a lease without an expiry, once a live holder would have renewed it."""
        if self._endless_since is None:
            self._endless_since = now
        elif requests and now - self._endless_since >= requests[0].ttl / 2:
            self._endless_since = math.inf
            self._context.spawn(endless.warn_of_endless(self._server))

    def _send_anew(self, request: Request) -> None:
        """Ask for a waiter that the server has forgotten (a restart, or silence for too long) at its old place."""
        if not request.turn.done() and request.token not in self._asking_anew:  # defect: W8-done
            self._asking_anew.add(request.token)
            self._context.spawn(self._asked_anew(request, self._server.grant(request)))

    async def _asked_anew(self, request: Request, asked: "asyncio.Future[Answer]") -> None:
        try:
            answer = await asked
        except (LockError, WithdrawnError) as error:  # a refusal; redis-py's LockError, and so a RedisError
            request.fail(error)
        except RedisError as error:
            now = self._context.clock()
            if now - request.fails_since(now) >= request.ttl:
                request.fail(error)
            elif not request.turn.done():  # let the line try again
                self.join(request, -1, 1)  # equivalent: 2 (second), any number but 0
        except asyncio.CancelledError:
            if not request.turn.done():
                self.join(request, -1, 1)  # equivalent: 2 (second), any number but 0
            raise
        except Exception as error:
            request.fail(error)
        else:
            if isinstance(answer, Granted):
                request.grant(answer.fence, answer.valid_from)
        finally:
            self._asking_anew.discard(request.token)
            if request.turn.done():
                self.leave(request)

    def _answered(self, call: PendingCall, busy_ms: int, subscribers: int, passed_over: bool) -> None:
        listening = self.listening
        since, self._stood_at = self._stood_at, call.sent_at
        if not listening.polling:
            heard = listening.subscriber.listening(self._server.channel(), call.sent_at)
            if heard:
                # Who has subscribed anew since the last re-check may have been passed over before that.
                # defect: W15-passed-over
                passed_over = passed_over and listening.subscriber.listening(self._server.channel(), since)
                listening.note_unheard(self._base, passed_over or not subscribers)
            if listening.unheard.get(self._base, 0) >= 2:  # defect: W11-unheard
                del listening.unheard[self._base]
                listening.poll("they are passed over, as if they had not subscribed", rights=bool(subscribers))
            elif heard and not subscribers:  # defect: W1-subscribe
                listening.subscribe_anew(self._server.channel())
                self._listen(0)
            else:
                self._listen(subscribers)
        else:
            listening.try_again(self._server.channel())  # defect: W15-try-again
        self._again(self._delay(busy_ms))

    def _failed(self, call: PendingCall, error: Exception) -> None:
        self._failures += 1
        now = self._context.clock()
        if self._failing_since is None:  # since it was asked; but what the loop was late is not Redis's
            self._failing_since = max(call.sent_at, now - call.patience) if call.link is not None else now
        for request in list(self.waiting.values()):
            if now - self._failing_since >= request.ttl:
                self.leave(request)
                request.fail(error if isinstance(error, RedisError) else RedisError(str(error)))
        self._again(retry_delay(4 * self.interval(), self._failures))

    def _again(self, delay: float) -> None:
        if self.waiting and not self._on_their_way:
            if self._once_more:
                self._once_more = False
                delay = min(delay, 0.02)
            self._schedule(delay)

    def _listen(self, subscribers: int) -> None:
        if not self.listening.polling and (not subscribers or of_shard(self.identify()[1])):
            self.listening.listen(self._server.channel(), self)

    def _delay(self, busy_ms: int) -> float:
        # equivalent: 1001, within the jitter
        expected = busy_ms / 1000 if busy_ms >= 0 else (0.0 if busy_ms == -2 else None)  # defect: W6-expected
        return recheck_delay(self.interval(), expected, random.random())

    def _schedule(self, delay: float) -> None:
        due = self._context.clock() + delay
        if self._on_their_way or (self._timer is not None and self._due <= due):
            return
        self._stop_timer()
        self._due = due
        self._timer = self._context.loop.call_later(delay, self.recheck)  # defect: W6-timer

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Servers(Protocol):
    """What a session has for each server that its names are on: one, or the nodes of a Cluster."""

    alone: bool
    """Whether all names are on one server."""
    queues: dict[bytes, WaitQueue]

    def listening(self, route: Route) -> Listening:
        """Return the `Listening` that notifies waiters for names on the server to which *route* leads."""
        ...

    def replication(self, route: Route) -> "Replication":
        """Return the `Replication` that waits for replicas of the server to which *route* leads."""
        ...
