"""Asks one Redis about one name: turns requests into scripts and their replies into grants.

Every primitive whose server side is the usual set of scripts (`grant`, `recheck`, `renew`, `release`, `statistics`)
uses this, and adds what it needs beyond: the semaphore its limit.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from redis.exceptions import RedisError, ResponseError

from ._commands import LONGEST_WAIT, Arguments, Call, CallReceiver, Commands
from ._errors import LimitMismatchError
from ._keys import Keys
from ._line import Answered, Line
from ._link import Link
from ._request import Busy, Granted, Queued, Request
from ._scripts import Script, load

if TYPE_CHECKING:
    from ._session import Session

LONGEST_RETRY = 60.0
"""Seconds within which a request sent over a lost connection may still reach Redis; tombstones last at least that."""

_REFUSED = -1


@final
class RedisGrantor:
    """One name on one Redis, shared by every task of a session that uses it."""

    def __init__(self, session: "Session", keys: Keys) -> None:
        self._session = session
        self._keys = keys
        self._common = (keys.base, keys.part(b"meta" if keys.kind == "semaphore" else b"fence"), keys.part(b"queue"))
        self.line = Line(session, self)

    @property
    def name(self) -> str:
        return self._keys.name

    @property
    def kind(self) -> str:
        return self._keys.kind

    def channel(self) -> bytes:
        return self._keys.channels + self._session.id

    async def grant(self, request: Request) -> Granted | Queued | Busy:
        line, commands = self.line, self._session.commands
        line.expect(request)
        future: asyncio.Future[Granted | Queued | Busy] = self._session.loop.create_future()

        def receive(call: Call, reply: Any) -> None:
            try:
                if isinstance(reply, Exception):
                    if isinstance(reply, ResponseError) or call.link is None:
                        request.answered(call)
                    raise reply
                request.answered(call)
                commands.note_round_trip(call)  # before the first renewal, which must not be impatient
                objection = self._learn(call, request, reply)
                outcome = self._read_grant(call, reply, request)
                if objection is not None:
                    raise objection
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(outcome)

        session_id, channels, life_ms = line.session_id(), self._keys.channels, line.life_ms()

        def args(link: Link) -> Arguments:
            extra, request.extra = request.extra, request.extra_again
            terms = (request.token, request.ttl_ms, request.permits, int(request.wait), request.ticket)
            return (*terms, session_id, channels, life_ms, *extra)

        patience = min(max(1.0, 4 * commands.round_trip) * 2 ** len(request.unanswered), LONGEST_WAIT)
        call = commands.submit(
            self._script("grant"), self._keys_for(request), args, receive, patience, unsent=LONGEST_WAIT
        )
        request.sent(call)
        return await future

    def _learn(self, call: Call, request: Request, reply: Any) -> RuntimeError | None:
        """Show the primitive its part of the reply; it may object, but the grants in it are others' too."""
        if request.learn is not None and reply[0] != b"withdrawn":
            try:
                request.learn(call.args, reply)
            except RuntimeError as objection:
                return objection
        return None

    def _read_grant(self, call: Call, reply: Any, request: Request) -> Granted | Queued | Busy:
        verdict = reply[0]
        if verdict == b"granted":
            request.left_at(call.sent_at)
            self._deliver(reply[2])  # this very grant may be among them
            self.line.leave(request)
            return Granted(reply[1], call.sent_at)
        if verdict == b"queued":
            _, ticket, busy_ms, fence, subscribers, grants, *_ = reply
            request.queued(ticket, call.sent_at, fence)
            request.retry_after = max(busy_ms, 0) / 1000
            if not request.turn.done():
                self.line.join(request, busy_ms, subscribers)
            self._deliver(grants)
            return Queued()
        if verdict == b"busy":
            request.retry_after = max(reply[1], 0) / 1000
            self._deliver(reply[2])
            return Busy()
        if verdict == b"refused":
            self._deliver(reply[2])
            raise self._refusal(request, reply[1])
        raise RedisError("this request was withdrawn before it came")

    def submit_recheck(self, entries: Sequence[bytes], receive: CallReceiver, patience: float) -> None:
        line = self.line
        keys = (*self._common, self._keys.part(b"q:" + line.session_id()))
        args: Arguments = (line.session_id(), self._keys.channels, line.life_ms(), *entries)
        self._session.commands.submit(self._script("recheck"), keys, args, receive, patience)

    def read_recheck(self, call: Call, reply: Any, requests: Sequence[Request], answered: Answered) -> None:
        subscribers, busy_ms, fence, passed_over, answers, grants = reply
        for request, answer in zip(requests, answers, strict=True):
            if request.turn.done():
                continue
            if answer > 0:
                request.queued(answer, call.sent_at, fence)
                request.retry_after = max(busy_ms, 0) / 1000
            elif answer < 0:
                self.line.found_untold()
                self.line.leave(request)
                request.grant(-answer, call.sent_at)
            else:
                self.line.leave(request)
                self._session.spawn(self._ask_anew(request))
        self._deliver(grants)
        answered(call, busy_ms, subscribers, bool(passed_over))

    async def _ask_anew(self, request: Request) -> None:
        """Ask for a waiter that the server has forgotten (a restart, or silence for too long) at its old place."""
        if request.turn.done():
            return
        try:
            answer = await self.grant(request)
        except LimitMismatchError as error:  # redis-py's LockError, and so a RedisError
            request.fail(error)
        except RedisError as error:
            now = self._session.clock()
            if request.failing_since is None:
                request.failing_since = now
            if now - request.failing_since >= request.ttl:
                request.fail(error)
            elif not request.turn.done():  # let the line try again
                self.line.join(request, -1, 1)
        except asyncio.CancelledError:
            if not request.turn.done():
                self.line.join(request, -1, 1)
            raise
        except Exception as error:
            request.fail(error)
        else:
            if isinstance(answer, Granted):
                request.grant(answer.fence, answer.counted_from)

    def renew(self, request: Request, ttl: float, commands: Commands | None = None) -> "asyncio.Future[bool]":
        commands = commands or self._session.commands
        future: asyncio.Future[bool] = commands.loop.create_future()

        def receive(call: Call, reply: Any) -> None:
            if not isinstance(reply, Exception):
                commands.note_round_trip(call)
            _resolve(future, reply == 1, reply)

        script = self._script("renew")
        keys = self._common[: len(script.keys)]
        # Bounded, as a measurement includes what the loop was late: a dead link must be given up before the deadline.
        patience = max(0.25, min(1.0, ttl / 4), min(4 * commands.round_trip, ttl / 3))
        commands.submit(script, keys, (request.token, round(ttl * 1000)), receive, patience)
        return future

    def withdraw(self, request: Request) -> "asyncio.Future[bool]":
        self.line.leave(request)
        request.turn.cancel()  # whatever is still on its way finds it over, and asks no more on its behalf
        for call in list(request.unanswered):
            call.drop()
        future: asyncio.Future[bool] = self._session.loop.create_future()
        if not request.reached and not request.unanswered:
            future.set_result(False)  # nothing ever left
            return future

        def receive(call: Call, reply: Any) -> None:
            if not isinstance(reply, Exception):
                self._deliver(reply[1])
            elif call.link is not None and not isinstance(reply, ResponseError):
                request.silences += 1
            _resolve(future, not isinstance(reply, Exception) and reply[0] == 1, reply)

        line = self.line
        session_id, channels, life_ms = line.session_id(), self._keys.channels, line.life_ms()

        def args(link: Link) -> Arguments:
            # A request that went over another connection may still come after this one.
            late = any(call.link is not link for call in request.unanswered)
            bury_ms = round(1000 * max(request.ttl, LONGEST_RETRY)) if late else 0
            return (request.token, request.entry, bury_ms, session_id, channels, life_ms)

        patience = min(max(1.0, 4 * self._session.commands.round_trip) * 2**request.silences, LONGEST_WAIT)
        self._session.commands.submit(self._script("release"), self._keys_for(request), args, receive, patience)
        return future

    async def ask(self, verb: str, args: Arguments = (), *, as_waiter: bool = False) -> Any:
        """Run a script that has to do with no lease; *as_waiter* adds what handing over needs."""
        future: asyncio.Future[Any] = self._session.loop.create_future()

        def receive(call: Call, reply: Any) -> None:
            if not isinstance(reply, Exception) and as_waiter:
                self._deliver(reply[1])  # such scripts answer {what was asked, grants}
            _resolve(future, reply, reply)

        line = self.line
        keys: tuple[bytes, ...] = self._common
        if as_waiter:
            keys = (*keys, self._keys.part(b"q:" + line.session_id()))
            args = (*args, line.session_id(), self._keys.channels, line.life_ms())
        self._session.commands.submit(self._script(verb), keys, args, receive, LONGEST_WAIT)
        with self._session.question():
            return await future

    def told(self, request: Request, fence: int, amount: int) -> None:
        """Take a grant, or a refusal, that was addressed to this token."""
        if fence == _REFUSED:
            self.line.leave(request)
            request.fail(self._refusal(request, amount))
        elif request.grant(fence):
            self.line.told()
            self.line.leave(request)

    def _deliver(self, grants: list[list[Any]]) -> None:
        for token, fence, amount in grants:
            self._session.deliver(token, fence, int(amount), self._keys.base)

    def _refusal(self, request: Request, limit: int) -> LimitMismatchError:
        return LimitMismatchError(
            f"{self.kind} {self.name!r}: {request.permits} permits asked for, but its limit is {limit}; "
            "ask for fewer, or resize it",
            name=self.name,
            permits=request.permits,
            limit=limit,
        )

    def _script(self, verb: str) -> Script:
        return load(f"{self._keys.kind}_{verb}")

    def _keys_for(self, request: Request) -> tuple[bytes, ...]:
        queue_part = self._keys.part(b"q:" + self.line.session_id())
        return (*self._common, queue_part, self._keys.part(b"t:" + request.token))


def _resolve(future: "asyncio.Future[Any]", result: object, reply: object) -> None:
    if future.done():
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
        future.exception()  # whoever asked may have left
    else:
        future.set_result(result)
