"""Asks one Redis about one name: turns requests into scripts and their replies into grants, for every primitive."""

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from redis.exceptions import RedisError, ResponseError

from .._core import events
from .._core.answers import REPLY_TIMEOUT, as_the_client_would, ask_until, resolve, was_not_run
from .._core.keys import Keys, channel_of
from .._core.options import Replicas
from .._core.replies import MAX_FENCE, UNREADABLE, RawReply, check_numbers, check_reply, grants_in
from .._core.untyped import make_tuple
from .._engine.context import Context, Guarding
from .._engine.extension import Extension
from .._engine.release import Release
from .._engine.request import (
    A_DAY,
    LONGEST_RETRY,
    Answer,
    Busy,
    Granted,
    Phase,
    Queued,
    Request,
    ResultCallback,
    WithdrawnError,
)
from .._redis.cluster import Route, SlotRoute
from .._redis.connection import Connection
from .._redis.endpoints import Pipelines
from .._redis.pipeline import FIRST_CONNECT, CallReceiver, PendingCall, Pipeline
from .._redis.scripts import Arguments, Command, NamedScript
from .families import RenewalBatch, ScriptSet, renewal_patience, renewed_alone
from .replication import replicated
from .wait_queue import WaitQueue
from .wakeups import SessionAddress, Wakeups, name_in

if TYPE_CHECKING:
    from .session import Servers

_ANSWERED, _GRANTED = Phase.ANSWERED, Phase.GRANTED  # looked up in half the time

_REFUSED = -1

_MORE = -2
"""In place of a fencing token (W21): more may be free than one script hands over, so the session asks for the rest."""

_LATER = -3
"""In place of a fencing token (W18): a cooling lease ends soon, and the session is to re-check then."""

_BRIEFLY = b"+"
"""In place of a ticket: the request has none yet, and a short reply is enough."""


@final
class RedisGrantor:
    """One name on one Redis, for as long as a caller needs it. Waiters of the name share its line in the session.

    Many names are used only once. So making a grantor costs little, and nothing below refers to it.
    """

    __slots__ = (
        "__weakref__", "_base", "_grant", "_queues", "_release", "_scripts", "context", "keys", "route", "servers",
    )  # fmt: skip

    def __init__(self, context: Context, keys: Keys, scripts: ScriptSet, servers: "Servers") -> None:
        self.context = context
        self.servers = servers
        self._queues = servers.queues
        self.keys = keys
        self._base = base = keys.base
        self.route: Route = servers.only or context.pipeline.route(base)
        self._scripts = scripts
        self._grant = NamedScript(scripts.grant, base, keys.holder_key)
        self._release = NamedScript(scripts.release, base, keys.holder_key)

    @property
    def queue(self) -> WaitQueue:  # of this session
        return self._queues.get(self._base) or WaitQueue(self, self.wakeups())

    @property
    def name(self) -> str:
        return self.keys.name

    @property
    def kind(self) -> str:
        return self.keys.kind

    def channel(self) -> bytes:
        queue = self._queues.get(self._base)
        wakeups = self.wakeups() if queue is None else queue.wakeups
        return channel_of(self._base, wakeups.prefix(self.keys.channels), self.context.id)

    def wakeups(self) -> Wakeups:
        return self.servers.wakeups_at(self.route)

    def grant(self, request: Request) -> "asyncio.Future[Answer]":
        context = self.context
        if context.undos.pausing:
            context.undos.retry_paused(self.kind, self.name)
        route, pipeline, queues = self.route, self.route.pipeline, self._queues
        line = queues.get(self._base) if queues else None
        if line is not None:
            line.expect(request)
        future: asyncio.Future[Answer] = context.loop.create_future()
        patience = pipeline.patience_after(request.silent_attempts) if request.unanswered else pipeline.patience
        link = pipeline.ready
        if link is None:
            self.servers.info.publish(self.keys.channels, request.terms.ttl)
        for extension in request.extensions:
            if extension.verb:
                return self._take_over(extension, request, patience)
        args = self._terms if link is None else self._terms(request, link)  # what leaves at once is worked out at once
        call = PendingCall(self._grant, args, self._answered, patience, request, future, context.clock())
        request.sent(call, self)  # as `_attempt` does, for speed
        # equivalent: comparison, for speed
        soon = line is None  # else this one will wait too, for longer
        route.start(call, REPLY_TIMEOUT if request.wait else FIRST_CONNECT, soon)
        return future

    def _take_over(self, extension: Extension, request: Request, patience: float) -> "asyncio.Future[Answer]":
        """Run the extension's script in place of `grant`."""

        def receive(call: PendingCall, reply: RawReply) -> None:
            if isinstance(reply, Exception) or (type(reply) is int and reply > 0):
                self._answered(call, reply)
            elif type(reply) is int:
                request.answered(call)
                resolve(future, extension.refusal(reply))
            else:
                raise TypeError

        future: asyncio.Future[Answer] = self.context.loop.create_future()
        script = self._scripts.script(extension.verb, self.keys)
        args = (request.token, *extension.arguments(), request.terms.ttl_ms)
        self._attempt(PendingCall(script, args, receive, patience, request, future, self.context.clock()))
        return future

    def _attempt(self, call: PendingCall) -> None:
        request: Request = call.subject
        request.sent(call, self)  # P7: before it leaves, so that an undo finds it whatever comes between
        self.route.start(call, REPLY_TIMEOUT)

    def _ask_on(self, request: Request, call: PendingCall, receive: CallReceiver) -> None:
        """Ask the same once more, for the same caller."""
        patience, now = self.route.pipeline.patience, self.context.clock()
        self._attempt(PendingCall(self._grant, self._terms, receive, patience, request, call.reply_to, now))

    def _go_behind(self, request: Request, call: PendingCall) -> bool:
        """Ask the same once more, behind the release that *call* has overtaken. Return False if there is none."""

        def ask_on() -> None:
            request.not_run(call)
            if not call.abandoned:
                self._ask_on(request, call, partial(self._answered, overtook=True))  # once, as that may last
            elif not call.reply_to.done():
                call.reply_to.set_result(Busy())

        request.sent(call)  # so that an undo finds it until then
        overtook = self._overtook(call, ask_on)
        if not overtook:
            request.not_run(call)
        return overtook

    def _overtook(self, call: PendingCall, ask_on: Callable[[], object]) -> bool:
        """Whether *call* has overtaken a release of this name. If so, call *ask_on* behind that release.

        The server did not know the release's script any more, or could not run it just then, or the name has moved. So
        the reply to *call* is about a lease that the session had let go.
        """

        def go_on() -> None:
            if waiting is None or not waiting.cancelled():
                undos.retry_paused(*name)
                ask_on()
            if waiting is not None:
                waiting.cancel()

        undos, link, name = self.context.undos, call.link, (self.kind, self.name)
        waiting: asyncio.TimerHandle | None = None
        if name in undos.pausing or (link is not None and any(map(self._is_release, link.resent))):
            go_on()
            return True
        late = self.route.late(self._is_release)
        if late is not None:
            patience = self.route.pipeline.patience
            waiting = self.context.loop.call_later(patience, go_on)  # P13: it may never be answered
            late.then(go_on)
        return late is not None

    def _is_release(self, call: PendingCall) -> bool:
        return call.gives_way and isinstance(call.command, NamedScript) and call.command.key == self._base

    def _address(self, request: Request, line: WaitQueue | None) -> SessionAddress:
        """Return the session's address for *request*. *line* is the session's queue for the name, if there is one."""
        if line is not None:
            return line.address()
        channels, ttl = self.keys.channels, request.terms.ttl
        return self.servers.addresses.get((channels, ttl)) or self.wakeups().address(channels, ttl)

    def _terms(self, request: Request, link: Connection) -> Arguments:
        line, terms, number = self._queues.get(self._base), request.terms, request.place.ticket
        address = self._address(request, line)
        ticket: bytes | int = number if request.wait else ~number  # defect: W8-ticket
        if line is None and not request.extensions:  # as nearly always
            return request.token, terms.ttl_ms, terms.permits, ticket, address
        brief = (
            line is not None and ticket == 0 and self._scripts.short_reply and line.knows(address)
            and not request.tried
        )  # fmt: skip
        more: Arguments = ()
        for extension in request.extensions:
            more += extension.arguments()
            brief = brief and extension.answered_briefly
            if extension.newcomer and ticket == 0:  # defect: W26-newcomer
                ticket, brief = extension.newcomer, False  # defect: W26-brief
        ticket = _BRIEFLY if brief else ticket
        return request.token, terms.ttl_ms, terms.permits, ticket, address, *more

    def _answered(self, call: PendingCall, reply: RawReply, *, overtook: bool = False) -> None:
        """Take the reply to an attempt. *overtook* is True if the attempt before it had overtaken a release."""
        request: Request = call.subject
        future: asyncio.Future[Answer] = call.reply_to
        if type(reply) is int and 0 < reply < MAX_FENCE:  # granted at once, and there is nothing else to tell
            request.granted(call)
            if self._queues:
                self._leave_line(request)
            if not future.done():
                future.set_result(make_tuple(Granted, (reply, call.sent_at)))
            return
        if isinstance(reply, Exception):
            if call.link is None or was_not_run(reply):
                request.not_run(call)
                if call.link is not None and call.command is self._grant:  # a verb has other arguments
                    for extension in request.extensions:
                        extension.not_run(call.args)
            elif isinstance(reply, ResponseError):
                request.answered(call)
            if not future.done():  # not raised on the way: a traceback would keep all callers, and what they hold
                future.set_exception(reply)
            return
        request.answered(call)
        try:
            objection = self._show_extensions(request, call, reply) if request.extensions else None
            answer = self._read_grant(call, reply, request, overtook=overtook)
            if objection is not None:
                raise objection
        except Exception as error:
            if isinstance(error, UNREADABLE) and not isinstance(error, RedisError):
                request.unread(call)
                raise
            if not future.done():
                future.set_exception(error)
        else:
            if answer is not None and not future.done():
                future.set_result(answer)

    def _show_extensions(self, request: Request, call: PendingCall, reply: RawReply) -> RuntimeError | None:
        """Show each extension the reply. An objection is returned, as the reply can have grants for other waiters."""
        if isinstance(reply, int) or reply[0] != b"withdrawn":
            try:
                for extension in request.extensions:
                    extension.on_reply(call.args, reply)
            except RuntimeError as objection:
                return objection
        return None

    def _read_grant(self, call: PendingCall, reply: RawReply, request: Request, *, overtook: bool) -> Answer | None:
        if type(reply) is int:  # a short reply: the re-checks of the others bring the rest
            args = call.args
            if not -MAX_FENCE < reply < 0 or args[3] != _BRIEFLY:
                raise ValueError
            request.queued(-reply, call.sent_at, 0, name_in(args[4]))
            turned = request.wait_by(call.reply_to)
            if not request.turn.done():
                self.queue.join_others(request)
            return None if turned else Queued()
        verdict = reply[0]
        if verdict == b"withdrawn":
            raise WithdrawnError("this request was withdrawn before it came")
        check_numbers(reply[1])
        if verdict == b"granted" and 0 <= reply[1] < MAX_FENCE:  # 0: of `compat`, which shows none, once evicted
            request.left_at(call.sent_at)
            self.deliver(reply[2])  # this very grant may be among them
            self._leave_line(request)
            return Granted(reply[1], call.sent_at)
        if verdict == b"queued":
            _, ticket, busy_ms, fence, subscribers, grants, *_ = reply
            check_numbers(busy_ms, fence, subscribers)
            request.queued(ticket, call.sent_at, fence, name_in(call.args[4]))
            request.busy_for_ms(busy_ms)
            turned = request.wait_by(call.reply_to)
            if not request.turn.done():
                self.queue.join(request, busy_ms, subscribers, call.args[4])
            self.deliver(grants)
            return None if turned else Queued()
        if verdict in (b"busy", b"young", b"full"):
            check_numbers(*reply[3:])
            request.busy_for_ms(reply[1], reply[3] if verdict == b"full" else None)
            more = self.deliver(reply[2], go_on=call.abandoned or call.reply_to.done())
            given_up = call.abandoned or call.reply_to.done() or overtook
            if more:
                self._ask_on(request, call, self._answered)  # behind the dead sessions at which the script stopped
                return None
            if not given_up and self._go_behind(request, call):
                return None
            return Busy(young=verdict == b"young")
        if verdict == b"refused":
            self.deliver(reply[2])
            raise request.refused(self.kind, self.name, reply[1])
        raise ValueError

    async def replicate(self, request: Request, replicas: Replicas) -> Granted:
        """Write the lease again, and wait until so many replicas have it; see `replication`."""
        return await replicated(self, self.servers.replication_at(self.route), request, replicas)

    def submit_again(self, pipeline: Pipeline, request: Request, patience: float) -> PendingCall:
        """Grant it once more over *pipeline*. The `reply_to` of the call is the future of the answer."""
        future, now = self.context.loop.create_future(), self.context.clock()
        # Whole: sent again after NOSCRIPT, it would come behind its own WAIT.
        call = PendingCall(self._grant, self._once_more, self._answered, patience, request, future, now, whole=True)
        request.sent(call)
        pipeline.start(call)
        self.route.report_only(call)
        return call

    def _once_more(self, request: Request, link: Connection) -> Arguments:
        more: Arguments = ()
        for extension in request.extensions:
            more += extension.arguments(again=True)
        address = self._address(request, self._queues.get(self._base))
        # A millisecond longer, as the script writes nothing if there is nothing to extend. `~0`: it does not queue.
        return request.token, request.terms.ttl_ms + 1, request.terms.permits, ~0, address, *more

    def submit_recheck(
        self, address: SessionAddress, entries: Sequence[bytes], receive: CallReceiver, patience: float
    ) -> None:
        self.route.submit(self._scripts.script("recheck", self.keys), (address, *entries), receive, patience)

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        pipeline = self.pipeline(thread)
        args = (request.token, round(ttl * 1000))
        script = self._scripts.script("renew", self.keys)
        pipeline.submit(script, args, renewed_alone, renewal_patience(pipeline, ttl), request, tell)

    def pipeline(self, thread: Pipelines | None) -> Route:
        """Return the route to the server of the name: the session's, or that of a *thread*."""
        return self.route if thread is None else thread.of(self.context.pool).route(self._base)

    @property
    def together(self) -> RenewalBatch | None:
        return None if self.servers.only is None else self._scripts.batch  # in a Cluster, a script has one slot

    def lease_keys(self) -> tuple[bytes, ...]:
        return self._scripts.lease_keys(self.keys)

    def reading(self, request: Request) -> "tuple[Command, Arguments] | None":
        return self._scripts.reading(self.keys, request)

    def undo(self, request: Request, tell: ResultCallback) -> None:
        if self._queues:
            self._leave_line(request)
        turn = request.awaited
        if request.phase is not _GRANTED or request.unanswered or (turn is not None and not turn.done()):
            request.give_up(self.context.loop)  # an answer that is on its way finds it over, and asks no more
            for asked in request.unanswered:
                asked.abandon()
            if request.phase < _ANSWERED and not request.unanswered:
                tell(False)  # nothing ever left
                return
        route, pipeline = self.route, self.route.pipeline
        patience = pipeline.undo_patience_after(request.silences) if request.silences else pipeline.undo_patience
        link = pipeline.ready
        args = self._undoing if link is None else self._undoing(request, link)
        # equivalent: constant, for speed
        call = route.submit(self._release, args, self._undone, patience, request, tell, pipeline.patience, soon=True)
        call.gives_way = True

    def _undoing(self, request: Request, link: Connection) -> Arguments:
        tombstone_ms, name, line = 0, request.place.session, self._queues.get(self._base)
        address = self._address(request, line)
        for asked in request.unanswered:
            if asked.link is not link:  # it may still come, after this one # defect: W10-late
                tombstone_ms = round(1000 * max(request.terms.ttl, LONGEST_RETRY))  # defect: W10-longest
            # W15: it leaves the line that re-checks keep alive, or that of its newest attempt; former ones end.
            newer = request.valid_from is None or asked.sent_at > request.valid_from
            # equivalent: constant, an adoption has 3, all others more
            if newer and name != name_in(address) and asked.link is not None and len(asked.args) > 4:
                name = name_in(asked.args[4])
        address = name + address[address.index(b" ") :] if name else address
        entry = request.queue_terms() if request.extensions else request.terms.text
        args: Arguments = request.token, entry, tombstone_ms, address, 0 if line is None else 1
        for extension in request.extensions:
            args += extension.release_arguments()
        return args

    def _undone(self, call: PendingCall, reply: RawReply) -> None:
        request: Request = call.subject
        tell: ResultCallback = call.reply_to
        if type(reply) is int and 0 <= reply <= 1:  # no waiter of this process has been granted anything
            if request.extensions:
                request.undone(ended=reply == 1)
            tell(reply == 1)
        elif isinstance(reply, Exception):
            if call.link is not None and not isinstance(reply, ResponseError):
                request.undo_unanswered()
            tell(reply)
        elif isinstance(reply, bytes):
            ended, *grants = reply.split()
            if ended not in (b"0", b"1") or not grants or len(grants) % 3:
                raise ValueError
            for at in range(0, len(grants), 3):
                fence = int(grants[at + 1])
                self.deliver_grant(grants[at], fence, int(grants[at + 2]))  # defect: W5-dispatched
                if events.listeners and fence > 0:
                    events.emit(events.Event("handed_over", self.name, self.kind, 0.0, fence))
            if request.extensions:
                request.undone(ended=ended == b"1")
            # The new holder goes first, a turn of the loop ahead: all others wait for it to let go.
            self.context.loop.call_soon(tell, ended == b"1")
        else:
            raise TypeError

    def guarding(self, request: Request) -> Guarding:
        record = self.keys.part(b"g:" + request.token)
        return Guarding(f"{self._scripts.kept_as}/guard", record, self.lease_keys(), (request.token,))

    async def ask(self, verb: str, args: Arguments = (), *, as_waiter: bool = False) -> RawReply:
        """Do as `ask_once` does, as often as the client would try. The script must do no harm if it runs twice."""
        with self.context.in_use():
            return await as_the_client_would(
                self.context.pipeline.retry_policy(), lambda: self.ask_once(verb, args, as_waiter=as_waiter)
            )

    async def ask_until(self, until: float, verb: str | Command, args: Arguments, *, as_waiter: bool = False) -> Any:
        """Do as `ask_once` does, until local time *until*; each attempt is more patient than the one before."""

        def ask(failures: int) -> Awaitable[RawReply]:
            patience = self.route.pipeline.patience_after(failures)
            return self.ask_once(verb, args, as_waiter=as_waiter, patience=patience)

        return await ask_until(ask, self.context.clock, until)

    async def ask_once(
        self, verb: str | Command, args: Arguments = (), *, as_waiter: bool = False, patience: float = REPLY_TIMEOUT
    ) -> RawReply:
        """Run a script that concerns no lease. *as_waiter* adds our address, and delivers the grants in the reply."""
        self.context.undos.retry_paused(self.kind, self.name)
        script = self._scripts.script(verb, self.keys) if isinstance(verb, str) else verb
        release_answered, overtook = asyncio.Event(), False  # equivalent: constant, each reply sets it

        def on_reply(call: PendingCall, reply: RawReply) -> None:
            nonlocal overtook
            check_reply(script.name, reply)
            if as_waiter:
                self.deliver(reply[1:])  # such scripts answer {what was asked, grants…} # W5: before the caller goes on
            elif not call.abandoned:
                overtook = self._overtook(call, release_answered.set)

        with self.context.in_use():
            if as_waiter:
                return await self.route.ask(
                    script, lambda _, link: (*args, self.queue.address()), patience, on_reply=on_reply
                )
            reply = await self.route.ask(script, args, patience, on_reply=on_reply)
            if overtook:  # once: what holds the release up may last
                await release_answered.wait()
                reply = await self.route.ask(script, args, patience)
            return reply

    async def statistics(self, *, waiting: bool = True) -> list[RawReply]:
        """Ask how the name stands. *waiting* also counts all waiters and leases: in parts, so at several instants."""
        answer: list[RawReply] = await self.ask("statistics", (0,))
        while answer[5] < 0:  # more leases had run out than one script drops
            answer = await self.ask("statistics", (0,))
        place = answer[5]
        while waiting and place > 0:
            part = await self.ask("statistics", (place,))
            answer[2] += part[2]
            answer[6], answer[7] = answer[6] + part[6], max(answer[7], part[7])
            place = part[5]
        return answer

    def deliver_grant(self, token: bytes, fence: int, amount: int) -> None:
        """Take a grant, or a refusal, that was addressed to a token of this session."""
        request = self.context.tokens.get(token)
        if fence < 0:
            self._take_notice(request, fence, amount)
        elif request is None:
            if fence > 0:
                self._return_stray_grant(token, amount / 1000)
        elif fence - request.place.ticket > A_DAY and request.far_behind(fence, self.context.clock()):
            self.queue.recheck()  # W5: such a grant counts only if the server confirms it
        elif request.grant(fence):
            line = self._queues.get(self._base)
            if line is not None:
                line.wakeups.message_arrived()
                line.leave(request)

    def _take_notice(self, request: Request | None, notice: int, amount: int) -> None:
        if notice == _MORE:
            self.queue.hand_over()  # defect: W21-hand-over
        elif notice == _LATER:
            self.queue.look_again(amount)
        elif notice == _REFUSED and request is not None:
            self._leave_line(request)
            request.fail(request.refused(self.kind, self.name, amount))

    def _return_stray_grant(self, token: bytes, ttl: float) -> None:
        """Give back a lease that no caller here wants: at once, rather than when it expires."""
        undos = self.context.undos
        if token not in undos.under_way:  # defect: W5-stray
            stray = Request(ttl, 1, wait=False, token=token)  # equivalent: True, it is never sent
            stray.was_reached()
            Release(undos, self, stray, self.context.clock() + ttl)

    def forget(self, request: Request) -> None:
        self.context.forget(request)

    def obstacle(self, request: Request) -> None:
        return None  # it has no parts

    def is_in(self, slots: Container[int]) -> bool:
        """Whether the name is in one of these slots of a Cluster."""
        return isinstance(self.route, SlotRoute) and self.route.slot in slots

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        return {self.name: fence}

    def deliver(self, grants: list[RawReply] | int, *, go_on: bool = True) -> bool:
        """Pass on the grants in a reply: one list of the token, fencing token and TTL of each; or 0 if there are none.

        Return whether something may still be free. If *go_on*, ask for that here instead, and return False.
        """
        more = False
        if grants:
            for token, fence, amount in grants_in(grants):
                if fence == _MORE and not go_on:
                    more = True
                else:
                    self.deliver_grant(token, fence, amount)
        return more

    def _leave_line(self, request: Request) -> None:
        line = self._queues.get(self._base)
        if line is not None:
            line.leave(request)
