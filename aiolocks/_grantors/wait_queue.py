"""The waiters of one session for one name, and the re-checks that keep their places.

A re-check is the session's sign of life, the cure for lost wake-ups, and the clock that grants are counted from. One
request at a time lists every token, and its reply answers each of them.

W8: a re-check never creates a place in the queue. A token that the server does not know is asked for again, with its
old ticket. Re-checks already report everything, so a waiter that joins others gets only its ticket as a reply. That
saves 4 of 12 commands. It does not count as a sign of life.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from redis.exceptions import RedisError, ResponseError

from .._core.errors import LockError
from .._core.keys import of_shard, session_key
from .._core.replies import MAX_FENCE, RawReply, check_numbers, grants_in, is_list
from .._core.timing import MIN_RECHECK_INTERVAL, patience, recheck_delay, recheck_interval, retry_delay
from .._core.tokens import session_of
from .._engine.request import ENDLESS, Answer, Granted, Request, WithdrawnError
from .._redis.clients import warn_once
from .._redis.pipeline import PendingCall
from .._redis.scripts import PlainCommand
from .wakeups import SessionAddress, Wakeups, name_in

if TYPE_CHECKING:
    from .one_server import RedisGrantor

_MAX_WAITERS = 250
"""Maximum number of waiters per re-check, so that no script blocks the server for a long time."""

_MAX_INTERVAL = recheck_interval(float("inf"))

_EXISTS = PlainCommand("EXISTS")


def _check(reply: RawReply, count: int) -> None:
    """Raise unless *reply* is a valid reply to a re-check of *count* waiters. Called before any of it is recorded."""
    subscribers, busy_ms, fence, skipped, answers, grants, *limit = reply
    check_numbers(subscribers, busy_ms, fence, skipped, *answers, *limit)
    grants_in(grants)
    # A ticket from damaged keys can be as large, and could be read as a grant if it is negative.
    if not is_list(answers) or len(answers) != count or any(answer <= -MAX_FENCE for answer in answers):
        raise ValueError


@final
class WaitQueue:
    """The waiters of one name in this session, from the first to the last. The next waiter after that begins another.

    The state is `waiting` and the one timer for the next re-check. Invariant: while there are waiters, the timer runs,
    or a re-check is on its way, and `Servers.queues` has this queue.
    """

    def __init__(self, grantor: "RedisGrantor", wakeups: Wakeups) -> None:
        self._context = context = grantor.context
        self._grantor = grantor
        self._base = grantor.keys.base
        self.wakeups = wakeups
        self.waiting: dict[bytes, Request] = {}
        self._interval = _MAX_INTERVAL
        self._address: SessionAddress | None = None
        """See `address`. None if it must be made again."""
        self._names: set[bytes] = set()
        """Names of the session under which its waiters may be queued. Only polling gives it more than one."""
        self._last_sent_address: SessionAddress | None = None
        """The address in the newest request that the server has answered."""
        self._busy_ms = -1
        """The last known ms of the other holder's lease; see `Request.busy_for_ms`."""
        self._timer: asyncio.TimerHandle | None = None
        self._on_their_way = 0
        self._once_more = False
        """Re-check again as soon as the one on its way is answered."""
        self._outage: tuple[float, int] | None = None
        """Since when re-checks have failed, and how many in a row."""
        self._asking_again: set[bytes] = set()
        """Tokens that are being asked for again, at their old places."""
        self._failing_since: dict[bytes, float] = {}
        """Since when asking again for a token has failed, without a break."""
        self._answered_at = context.clock()
        """Send time of the last answered re-check, or when the queue began. If a re-check finds that the server skipped
        this session, it happened after this."""
        self._endless_since: float | None = None
        """When a re-check first found a lease without an expiry. It is infinite after `_warn_of_endless`."""

    def interval(self) -> float:
        """Return the longest time between re-checks. It follows the shortest TTL since the queue was empty."""
        return self.wakeups.interval(self._interval)

    def address(self) -> SessionAddress:
        """Return the session's address for a request about this name. It says how often the session re-checks."""
        address = self._address
        if address is None:
            context = self._context
            self._address = address = self.wakeups.address_for(self._grantor.keys.channels, self._interval)
            name = name_in(address)
            formers, self._names = self._names - {name}, {name}  # defect: W11-formers
            for former in sorted(formers):
                context.loop.call_soon(self._move, former, context.clock() + 3 * _MAX_INTERVAL)
        return address

    def forget_address(self) -> None:
        """Make the address again before its next use."""
        self._address = None

    def _move(self, former: bytes, until: float) -> None:
        """W15: leave the queue of a *former* session name, and ask for each waiter's old place under the new name.

        In this order: a waiter in two queues could be granted twice, and the second grant would change the first.
        """
        self._expire(former, until)
        for request in list(self.waiting.values()):
            self._ask_again(request)  # defect: W15-move

    def _expire(self, former: bytes, until: float) -> None:
        """Expire the queue of the *former* session name now: until then the server grants to waiters that left it."""

        def answered(call: PendingCall, reply: RawReply) -> None:
            if not isinstance(reply, Exception):
                return
            if call.link is not None and not isinstance(reply, ResponseError):  # goes ahead of later requests
                self._expire(former, until)
            else:
                self._context.loop.call_later(MIN_RECHECK_INTERVAL, self._expire, former, until)

        if not self._context.closed and self._context.clock() < until:
            self._recheck_none(b"%b 0 %b" % (former, self.wakeups.prefix(self._grantor.keys.channels)), answered)

    def _recheck_none(self, address: SessionAddress, answered: Callable[[PendingCall, RawReply], None]) -> None:
        """Send a re-check without waiters, as every re-check also hands over. Call *answered* with its reply."""

        def receive(call: PendingCall, reply: RawReply) -> None:
            if not isinstance(reply, Exception):
                _check(reply, 0)
            answered(call, reply)
            if not isinstance(reply, Exception):
                self._grantor.deliver(reply[5])

        self._grantor.submit_recheck(address, (), receive, self._grantor.route.pipeline.patience)

    def expect(self, request: Request) -> None:
        """W3: record the TTL of a request before it is sent. It bounds the time between signs of life."""
        interval = request.terms.recheck
        if interval < self._interval or not self.waiting:
            self._set_interval(interval)

    def _set_interval(self, interval: float) -> None:
        if interval != self._interval:
            self._interval = interval
            self._address = None
            if self._timer is not None:  # a shorter interval counts at once, as the next request reports it
                self._schedule(interval)

    def knows(self, address: SessionAddress) -> bool:
        """Whether the server knows *address*, and so for how long the session may be silent."""
        return self._last_sent_address == address  # defect: W3-told

    def join(self, request: Request, busy_ms: int, subscribers: int, sent: SessionAddress | None = None) -> None:
        """Add a waiter. *sent* is the address in the request that was answered "queued", if there was one."""
        servers = self.wakeups.servers
        current = servers.queues.setdefault(self._base, self)
        if current is not self:  # this queue has ended, and others have begun another
            current.join(request, busy_ms, subscribers, sent)
            return
        if not self.waiting:
            servers.grantors[self._base] = self._grantor
        if sent is not None:
            self._last_sent_address, self._busy_ms = sent, busy_ms
            self._names.add(name_in(sent))
        self.waiting[request.token] = request
        self._set_interval(min(self._interval, request.terms.recheck))  # defect: W3-shortest
        if len(self._names) > 1:  # they asked at the same time, before there was a queue
            self._address = None
            self.address()
        self._subscribe(subscribers)
        # equivalent: <= + constant, for speed
        if self._timer is None or busy_ms < 1000 * self._interval:  # otherwise the next re-check is sooner anyway
            self._schedule(self._delay(busy_ms))

    def join_others(self, request: Request) -> None:
        """Add a waiter beside others. If these have left, it is the first one."""
        request.busy_for_ms(self._busy_ms)
        if self.waiting:
            self.waiting[request.token] = request
        else:
            self.join(request, -1, 1)  # equivalent: 2 (second), any number but 0

    def leave(self, request: Request) -> None:
        if self.waiting.pop(request.token, None) is not None and not self.waiting:
            queues = self.wakeups.servers.queues
            if queues.get(self._base) is self:
                del queues[self._base]
                self.wakeups.unsubscribe(self._grantor.channel(), self)
            self._stop_timer()

    def stop(self, error: Exception) -> None:
        """End every wait with *error*, because the session has ended."""
        for request in list(self.waiting.values()):
            self.leave(request)
            request.fail(error)

    def follow(self) -> None:
        """Wait at another server, if that has the name now, and forget the channel at the old server."""
        wakeups = self._grantor.wakeups()
        if wakeups is self.wakeups:
            return
        self.wakeups.skipped_twice(self._base, skipped=False)
        self.wakeups.unsubscribe(self._grantor.channel(), self)
        self.wakeups = wakeups
        self._address = self._last_sent_address = None
        self.recheck()

    def recheck(self) -> None:
        """Re-check all waiters now, or after the re-check on its way."""
        self._stop_timer()
        if self._on_their_way:
            self._once_more = True
            return
        requests = list(self.waiting.values())
        for start in range(0, len(requests), _MAX_WAITERS):
            self._ask(requests[start : start + _MAX_WAITERS])

    def look_again(self, busy_ms: int) -> None:
        """W18: re-check in *busy_ms*, when the name that another holder has released becomes free."""
        if self.waiting:
            self._busy_ms = busy_ms
            if self._on_their_way:  # its reply may be older than this notice
                self._once_more = True
            else:
                self._schedule(self._delay(busy_ms))

    def hand_over(self) -> None:
        """W21: ask the server to continue to hand over, as one script had no time for all that may be free.

        If this request is lost, the next re-check of any waiter continues.
        """
        handing_over = self.wakeups.servers.handing_over
        if self._base not in handing_over and not self._context.closed:
            handing_over.add(self._base)
            self._context.schedule_idle_close()
            self._recheck_none(self.address(), lambda call, reply: handing_over.discard(self._base))

    def _ask(self, requests: Sequence[Request]) -> None:
        def receive(call: PendingCall, reply: object) -> None:
            if not isinstance(reply, Exception):
                _check(reply, len(requests))
            self._on_their_way -= 1
            if isinstance(reply, Exception):
                self._failed(call, reply)
            else:
                self._outage = None
                self._last_sent_address = address
                self._read(call, reply, requests)

        self._on_their_way += 1
        address = self.address()
        # W6: a re-check that is not answered in time is sent again over a new connection.
        timeout = patience(self.interval(), self._grantor.route.pipeline.round_trip)
        self._grantor.submit_recheck(address, [request.entry() for request in requests], receive, timeout)

    def _read(self, call: PendingCall, reply: RawReply, requests: Sequence[Request]) -> None:
        subscribers, busy_ms, fence, skipped, answers, grants, *limit = reply
        self._busy_ms = busy_ms
        if busy_ms != ENDLESS:
            self._endless_since = None
        elif self._grantor.keys.family in {"lock", "exact"}:  # the other families have several holders
            self._note_endless(call.sent_at, requests)
        for request, answer in zip(requests, answers, strict=True):  # defect: P1-recheck
            if request.turn.done():  # defect: W8-left
                continue
            if answer > 0:
                request.queued(answer, call.sent_at, fence, name_in(call.args[0]))
                request.busy_for_ms(busy_ms)
                objections = (extension.objection(limit[0]) for extension in request.extensions if limit)
                objection = next((found for found in objections if found is not None), None)
                if objection is not None:
                    self.leave(request)
                    request.fail(objection)
            elif answer < 0:
                self.wakeups.message_missed()
                self.leave(request)
                request.grant(-answer, call.sent_at)
            else:
                self._ask_again(request)  # defect: W8-anew
        self._grantor.deliver(grants)
        self._check_subscription(call.sent_at, subscribers, bool(skipped))
        self._schedule_next(self._delay(busy_ms))

    def _note_endless(self, now: float, requests: Sequence[Request]) -> None:
        """Examine a lease without an expiry, after a live holder would have renewed it."""
        if self._endless_since is None:
            self._endless_since = now
        elif requests and now - self._endless_since >= requests[0].terms.ttl / 2:
            self._endless_since = math.inf
            self._context.spawn(_warn_of_endless(self._grantor))

    def _ask_again(self, request: Request) -> None:
        """W8: ask for the old place of a waiter that the server has forgotten, after a restart or a long silence."""
        if not request.turn.done() and request.token not in self._asking_again:  # defect: W8-done
            self._asking_again.add(request.token)
            self._context.spawn(self._asked_again(request, self._grantor.grant(request)))

    async def _asked_again(self, request: Request, asked: "asyncio.Future[Answer]") -> None:
        try:
            answer = await asked
            self._failing_since.pop(request.token, None)
            if isinstance(answer, Granted):
                request.grant(answer.fence, answer.valid_from)
        except Exception as error:
            now = self._context.clock()
            refused = not isinstance(error, RedisError) or isinstance(error, (LockError, WithdrawnError))
            if refused or now - self._failing_since.setdefault(request.token, now) >= request.terms.ttl:
                request.fail(error)
            elif not request.turn.done():  # the next re-check tries again
                self.join(request, -1, 1)  # equivalent: 2 (second), any number but 0
        except asyncio.CancelledError:
            if not request.turn.done():
                self.join(request, -1, 1)  # equivalent: 2 (second), any number but 0
            raise
        finally:
            self._asking_again.discard(request.token)
            if request.turn.done():
                self._failing_since.pop(request.token, None)
                self.leave(request)

    def _check_subscription(self, sent_at: float, subscribers: int, skipped: bool) -> None:
        """Compare what the server said about this session's subscription, when the re-check ran, with our own view."""
        wakeups, channel = self.wakeups, self._grantor.channel()
        since, self._answered_at = self._answered_at, sent_at
        if wakeups.polling:
            wakeups.retry_subscribing(channel)  # defect: W15-try-again
            return
        subscribed = wakeups.subscriber.listening(channel, sent_at)
        if subscribed:
            # A session that has subscribed since the last re-check may have been skipped before it subscribed.
            skipped = skipped and wakeups.subscriber.listening(channel, since)  # defect: W15-passed-over
        if subscribed and wakeups.skipped_twice(self._base, skipped=skipped or not subscribers):  # defect: W11-unheard
            wakeups.poll("they are passed over, as if they had not subscribed", rights=bool(subscribers))
        elif subscribed and not subscribers:  # defect: W1-subscribe
            wakeups.resubscribe(channel, self)
        else:
            self._subscribe(subscribers)

    def _failed(self, call: PendingCall, error: Exception) -> None:
        now = self._context.clock()
        # Since the re-check was sent. A delay of this loop is not counted, as it is not Redis's fault.
        sent_at = max(call.sent_at, now - call.patience) if call.link is not None else now
        since, failures = self._outage or (sent_at, 0)
        self._outage = since, failures + 1
        for request in list(self.waiting.values()):
            # I4: a waiter that was answered meanwhile has waited less, such as a newcomer.
            if now - max(since, request.valid_from or since) >= request.terms.ttl:
                self.leave(request)
                request.fail(error if isinstance(error, RedisError) else RedisError(str(error)))
        self._schedule_next(retry_delay(4 * self.interval(), failures + 1))

    def _schedule_next(self, delay: float) -> None:
        if self.waiting and not self._on_their_way:
            if self._once_more:
                self._once_more = False
                delay = min(delay, 0.02)
            self._schedule(delay)

    def _subscribe(self, subscribers: int) -> None:
        if not self.wakeups.polling and (not subscribers or of_shard(self.address())):
            self.wakeups.subscribe(self._grantor.channel(), self)

    def _delay(self, busy_ms: int) -> float:
        # equivalent: 1001, within the jitter
        expected = busy_ms / 1000 if busy_ms >= 0 else (0.0 if busy_ms == -2 else None)  # defect: W6-expected
        return recheck_delay(self.interval(), expected, random.random())

    def _schedule(self, delay: float) -> None:
        loop, timer = self._context.loop, self._timer
        if self._on_their_way or (timer is not None and timer.when() <= loop.time() + delay):
            return
        self._stop_timer()
        self._timer = loop.call_later(delay, self.recheck)  # defect: W6-timer

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _warn_of_endless(grantor: "RedisGrantor") -> None:
    """Log a warning, once, if the name's holder has no expiry and the holder's session is gone.

    A lease always has an expiry, but PERSIST or a tool that rewrites keys can remove it. A live holder restores it with
    its next renewal, and the key of its session shows that it is alive (W23). Without one, the name is never free.
    """
    keys, context = grantor.keys, grantor.context
    try:
        _, *row = await grantor.ask_once("lock/holders", (0,))
        session = session_of(row[0]) if row else b""
        if not session or row[2] != -1:
            return
        key = session_key(keys.channels, session)
        if await context.pipeline.route(key).ask(_EXISTS, (key,)):
            return
    except RedisError:  # the waiters' re-checks report it
        return
    warn_once(
        context.pool, (keys.base, int(row[1])),
        "%s %r: its holder's key has no expiry (was it persisted?) and the holder's process is gone, so it never "
        "ends; free it with: aiolocks release NAME --force, or lock.revoke(force=True)",
        keys.kind, keys.name,
    )  # fmt: skip
