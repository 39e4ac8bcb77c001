"""The waiters of one session for one name, and the re-checks that keep their places.

A re-check is the session's sign of life, the cure for lost wake-ups, and the clock that grants are counted from: one
request at a time, in which every token is listed and answered. It never creates a place in the queue; a token that
the server does not know asks anew, with its old ticket. Since it tells so much, whoever joins others needs no more than
a ticket for an answer, and is no sign of life: that saves 4 of the 12 commands that a newcomer costs.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from redis.exceptions import RedisError, ResponseError

from ._bound import Arguments
from ._commands import Call
from ._deadlines import SHORTEST_RECHECK, patience, recheck_delay, recheck_interval, retry_delay
from ._errors import LockError
from ._request import Answer, Granted, Request

if TYPE_CHECKING:
    from ._grantor import RedisGrantor
    from ._session import Session

_LONGEST_LIST = 250
"""Waiters per re-check: no script keeps the server from all others for long."""

_LONGEST_INTERVAL = recheck_interval(float("inf"))

_POLLING_INTERVAL = 0.25
"""Seconds between re-checks of a session that cannot be told; a turn it does not notice costs others twice that."""


@final
class Line:
    """Who waits here. The timer runs while somebody does."""

    def __init__(self, session: "Session", grantor: "RedisGrantor", channels: bytes) -> None:
        self._session = session
        self._grantor = grantor
        self._channels = channels
        self._identity: Identity | None = None
        self._name: bytes | None = None
        self._polls = False
        self._expected_ttl: float | None = None
        """The TTL last noted since the line was empty."""
        self.waiting: dict[bytes, Request] = {}
        self._asking_anew: set[bytes] = set()
        """Who asks for an old place at this moment."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._on_their_way = 0
        self._once_more = False
        self._handing_over = False
        self._failures = 0
        self._failing_since: float | None = None
        self._untold = 0
        self._unheard = 0
        self._stood_at = -math.inf
        """When the newest re-check left that was answered; whoever was passed over then, was so before."""
        self._interval = _LONGEST_INTERVAL
        self._told: Arguments | None = None
        """What the server was last told of this session here."""
        self._busy_ms = -1
        """How long the lease in the way lasted when that was last told."""

    def interval(self) -> float:
        """Return the longest this line goes without a re-check: by the shortest TTL since it was last empty."""
        return min(self._interval, _POLLING_INTERVAL) if self._session.polling else self._interval

    def identity(self) -> "Identity":
        """Return what each script is told of whoever asks.

        A session that cannot be told says in its name how often it looks.
        """
        session = self._session
        if self._identity is None or self._polls != session.polling:
            self._polls, interval = session.polling, self.interval()
            name = b"poll%d-%b" % (max(1, round(1000 * interval)), session.id) if self._polls else session.id
            former, self._name = self._name, name
            if former not in (None, name):
                session.loop.call_soon(self._move, former, session.clock() + 3 * _LONGEST_INTERVAL)
            self._identity = (name, self._channels, round(3000 * interval))
        return self._identity

    def _move(self, former: bytes, until: float) -> None:
        """Leave the line under a *former* name, and ask for each waiter's old place under the new one, in one go.

        In this order: a waiter in two lines could be granted twice, and the second grant would change the first.
        """
        self._abandon(former, until)
        for request in list(self.waiting.values()):
            self._send_anew(request)

    def _abandon(self, former: bytes, until: float) -> None:
        """Let the line under a former name be dead at once, and not only from *until* on.

        Turns would still go there, and to those who have left the line under the new name since.
        """

        def receive(call: Call, reply: Any) -> None:
            if not isinstance(reply, Exception):
                self._grantor.deliver(reply[5])
            elif call.link is not None and not isinstance(reply, ResponseError):  # ahead of whatever is sent next
                self._abandon(former, until)
            else:
                self._session.loop.call_later(SHORTEST_RECHECK, self._abandon, former, until)

        if not self._session.closed and self._session.clock() < until:
            patience = self._session.commands.patience
            self._grantor.submit_recheck((former, self._channels, 0), (), receive, patience)

    def expect(self, request: Request) -> None:
        """Note the TTL of a request about to be made, which bounds how long the session may keep silent."""
        if request.ttl != self._expected_ttl:  # most ask for the same
            self._expected_ttl = request.ttl
            interval = recheck_interval(request.ttl)
            if interval < self._interval or not self.waiting:
                self._look_every(interval)

    def _look_every(self, interval: float) -> None:
        if interval != self._interval:
            self._interval = interval
            self._identity = None
            if self._timer is not None:  # a shorter one counts at once: the server is told it with the next request
                self._schedule(interval)

    def knows(self, identity: "Identity") -> bool:
        """Whether the server has been told that it is *identity* who asks, and for how long its word is good."""
        return self._told == identity

    def join(self, request: Request, busy_ms: int, subscribers: int, told: Arguments | None = None) -> None:
        """Let a request wait; *told*: who the server was told that it is."""
        if told is not None:
            self._told, self._busy_ms = told, busy_ms
        self.waiting[request.token] = request
        self._look_every(min(self._interval, recheck_interval(request.ttl)))
        self._session.lines[self] = None
        self._listen(subscribers)
        if self._timer is None or busy_ms < 1000 * self._interval:  # else the re-check that is due comes sooner anyway
            self._schedule(self._delay(busy_ms))

    def join_others(self, request: Request) -> None:
        """Let a request wait beside others, unless they have left meanwhile."""
        request.retry_after = max(self._busy_ms, 0) / 1000
        if self.waiting:
            self.waiting[request.token] = request
        else:
            self.join(request, -1, 1)

    def leave(self, request: Request) -> None:
        if self.waiting.pop(request.token, None) is not None and not self.waiting:
            self._session.lines.pop(self, None)
            self._expected_ttl = None
            self._stop_timer()

    def stop(self, error: Exception) -> None:
        """Tell every waiter that the session has ended."""
        for request in list(self.waiting.values()):
            self.leave(request)
            request.fail(error)

    def told(self) -> None:
        """Note that a turn was told."""
        self._untold = 0

    def found_untold(self) -> None:
        """Note that a re-check found a turn that was not told: twice in a row, and the wake-ups' link must be dead."""
        self._untold += 1
        if self._untold >= 2 and not self._session.polling:
            self._untold = 0
            self._session.wakeups.reconnect()

    def recheck(self) -> None:
        """Ask how all waiters stand, now; after the re-check on its way, if there is one."""
        self._stop_timer()
        if self._on_their_way:
            self._once_more = True
            return
        requests = list(self.waiting.values())
        for start in range(0, len(requests), _LONGEST_LIST):
            self._ask(requests[start : start + _LONGEST_LIST])

    def hand_over(self) -> None:
        """Have the server go on handing over: it had no time for all that may be free.

        If that is lost, the next re-check goes on, of whoever stands in the queue.
        """

        def receive(call: Call, reply: Any) -> None:
            self._handing_over = False
            if not isinstance(reply, Exception):
                self._grantor.deliver(reply[5])

        if not self._handing_over and not self._session.closed:
            self._handing_over = True
            self._session.touch()
            self._grantor.submit_recheck(self.identity(), (), receive, self._session.commands.patience)

    def _ask(self, requests: Sequence[Request]) -> None:
        def receive(call: Call, reply: object) -> None:
            self._on_their_way -= 1
            if isinstance(reply, Exception):
                self._failed(call, reply)
            else:
                self._failures = 0
                self._failing_since = None
                self._told = identity
                self._read(call, reply, requests)

        self._on_their_way += 1
        identity = self.identity()
        self._grantor.submit_recheck(
            identity,
            [request.entry() for request in requests],
            receive,
            patience(self.interval(), self._session.commands.round_trip),
        )

    def _read(self, call: Call, reply: Any, requests: Sequence[Request]) -> None:
        subscribers, busy_ms, fence, passed_over, answers, grants, *limit = reply
        self._busy_ms = busy_ms
        for request, answer in zip(requests, answers, strict=True):
            if request.turn.done():
                continue
            if answer > 0:
                request.queued(answer, call.sent_at, fence)
                request.retry_after = max(busy_ms, 0) / 1000
                objection = request.objects(limit[0]) if request.objects and limit else None
                if objection:
                    self.leave(request)
                    request.fail(objection)
            elif answer < 0:
                self.found_untold()
                self.leave(request)
                request.grant(-answer, call.sent_at)
            else:
                self._send_anew(request)
        self._grantor.deliver(grants)
        self._answered(call, busy_ms, subscribers, bool(passed_over))

    def _send_anew(self, request: Request) -> None:
        """Ask for a waiter that the server has forgotten (a restart, or silence for too long) at its old place."""
        if not request.turn.done() and request.token not in self._asking_anew:
            self._asking_anew.add(request.token)
            self._session.spawn(self._asked_anew(request, self._grantor.grant(request)))

    async def _asked_anew(self, request: Request, asked: "asyncio.Future[Answer]") -> None:
        try:
            answer = await asked
        except LockError as error:  # a refusal; redis-py's LockError, and so a RedisError
            request.fail(error)
        except RedisError as error:
            now = self._session.clock()
            if request.failing_since is None:
                request.failing_since = now
            if now - request.failing_since >= request.ttl:
                request.fail(error)
            elif not request.turn.done():  # let the line try again
                self.join(request, -1, 1)
        except asyncio.CancelledError:
            if not request.turn.done():
                self.join(request, -1, 1)
            raise
        except Exception as error:
            request.fail(error)
        else:
            if isinstance(answer, Granted):
                request.grant(answer.fence, answer.counted_from)
        finally:
            self._asking_anew.discard(request.token)
            if request.turn.done():
                self.leave(request)

    def _answered(self, call: Call, busy_ms: int, subscribers: int, passed_over: bool) -> None:
        session = self._session
        since, self._stood_at = self._stood_at, call.sent_at
        if not session.polling:
            listening = session.wakeups.listening(self._grantor.channel(), call.sent_at)
            if listening:
                # Who has subscribed anew since the last re-check may have been passed over before that.
                passed_over = passed_over and session.wakeups.listening(self._grantor.channel(), since)
                self._unheard = self._unheard + 1 if passed_over or not subscribers else 0
            if self._unheard >= 2:
                self._unheard = 0
                session.poll("they are passed over, as if they had not subscribed", rights=bool(subscribers))
            elif listening and not subscribers:
                session.wakeups.reconnect()
            else:
                self._listen(subscribers)
        else:
            session.healing.look(self._grantor.channel())
        self._again(self._delay(busy_ms))

    def _failed(self, call: Call, error: Exception) -> None:
        self._failures += 1
        now = self._session.clock()
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
        if not subscribers and not self._session.polling:
            self._session.wakeups.listen(self._grantor.channel())

    def _delay(self, busy_ms: int) -> float:
        expected = busy_ms / 1000 if busy_ms >= 0 else (0.0 if busy_ms == -2 else None)
        return recheck_delay(self.interval(), expected, random.random())

    def _schedule(self, delay: float) -> None:
        due = self._session.clock() + delay
        if self._on_their_way or (self._timer is not None and self._due <= due):
            return
        self._stop_timer()
        self._due = due
        self._timer = self._session.loop.call_later(delay, self.recheck)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


Identity = tuple[bytes, bytes, int]
"""The name of whoever asks, the start of all channels, and for how many ms its line lives without a re-check."""
