"""Several independent servers that vote on one name: a lease is what a majority of them grants at the same time.

A Grantor made of Grantors. The algorithm is Redlock, with fencing tokens that increase over any majority: the largest
token granted is proposed to all servers. Each refuses it if it has accepted a larger one, or the same from another
holder; then a larger one is proposed. No caller queues at a server, because queues at several servers could wait for
each other. A failed attempt is undone on all servers, and retried after a random delay.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.answers import REPLY_TIMEOUT, NotNowError, ask_until, came_too_early, resolve, ride_out
from .._core.errors import QuorumError
from .._core.keys import Keys
from .._core.replies import RawReply, check_reply
from .._core.tokens import own_part
from .._core.values import Holder
from .._engine.release import GRACE
from .._engine.request import Answer, Busy, Granted, Request
from .._redis.pipeline import PendingCall
from .._redis.scripts import Arguments, PreparedScript, load
from .one_server import RedisGrantor
from .parts import Ballot, Composite, Part, end, quorum_of
from .uptime import too_young
from .who import HolderRow, holder_of, holder_rows, names_of

MAX_VOTE_TIMEOUT = 1.0
"""Maximum number of seconds that a server has to answer in one attempt."""

MIN_VOTE_TIMEOUT = 0.1
"""Minimum of the same. Also how long the other servers are waited for once an attempt has failed."""

MAX_PAUSE = 0.2
"""Maximum number of seconds between two attempts, give or take half."""

PATIENCE = 1.0
"""Timeout for too few servers that answer from the beginning: a server that restarts is back by then."""

Enough = Callable[[Ballot], float | None]
"""Returns for how many more seconds the other servers are waited for, or None while more answers are needed."""


@final
class Quorum(Composite):
    """Decides over one name by all of *grantors*. The context of the first one keeps the lease."""

    def __init__(self, grantors: Sequence[RedisGrantor], keys: Keys, places: Sequence[str]) -> None:
        self.grantors = grantors
        self._contexts = [grantor.context for grantor in grantors]
        self._routes = [context.pipeline.route(keys.base) for context in self._contexts]
        self.context = self._contexts[0]
        self._keys = keys
        self.name = keys.name
        self.kind = keys.kind
        self._places = places
        self._quorum = quorum_of(len(grantors))
        self.blocking = len(grantors) - self._quorum + 1
        """The number of servers that can block every majority."""

    def needed(self, request: Request) -> int:
        return self._quorum

    def keep_open(self) -> contextlib.ExitStack:
        """Return a context manager that keeps the sessions of all servers open."""
        stack = contextlib.ExitStack()
        for context in self._contexts:
            stack.enter_context(context.in_use())
        return stack

    async def grant(self, request: Request) -> Answer:
        with self.keep_open():  # no session may end between two attempts
            if request.parts and request.parts[0].fence:
                renewed = await self.renewed(request)
                if renewed is not None:
                    return renewed
                self._give_back(request)
            return await self._repeat(request)

    async def _repeat(self, request: Request) -> Answer:
        """Make attempts until one is granted, or its answer is final."""
        clock, attempts = self.context.clock, 0
        failing_since: float | None = None
        while True:
            began = clock()
            answer = await self._attempt(request)
            if isinstance(answer, Granted):
                return answer
            if isinstance(answer, QuorumError):
                failing_since = began if failing_since is None else failing_since
                if clock() - failing_since >= _patience(request, answer):
                    raise answer
            elif request.wait:
                failing_since = None
            elif isinstance(answer, Busy):
                until = clock() + min(GRACE, request.terms.ttl)
                await self.context.undos.begin(self, request, until).settle(until)
                return answer
            else:
                self._give_back(request)  # the caller may ask again
                raise answer
            self._give_back(request)
            attempts += 1
            await asyncio.sleep(self._pause(attempts))

    def _give_back(self, request: Request) -> None:
        for part in request.parts:
            end(part)  # defect: P7-votes
        request.divide(())  # equivalent: line dropped, it is given back once

    def _pause(self, attempts: int) -> float:
        """Return a random delay, in which a rival whose attempt met this one can win."""
        round_trip = max(route.pipeline.round_trip for route in self._routes)
        first = max(0.005, min(2 * round_trip, MAX_PAUSE / 4))
        return random.uniform(0.5, 1.5) * min(first * 2.0 ** min(attempts, 8), MAX_PAUSE)

    async def _attempt(self, request: Request) -> Granted | Busy | Exception:
        """Ask all servers once. Return an exception if their answers decide nothing."""
        clock = self.context.clock
        began, fence = clock(), 0
        ballot = await self._vote(request)
        if ballot.answered:
            request.was_reached()
        if ballot.won:
            fence, ballot = await self._agree(request, max(ballot.yes.values()))
            if fence and clock() < began + request.terms.valid_for:
                for part in request.parts:
                    part.granted(fence)
                return Granted(fence, began)  # defect: P1-votes
        elif ballot.answered:
            return Busy()
        late = f"{self.kind} {self.name!r}: agreeing took longer than its TTL of {request.terms.ttl:g} s allows"
        trouble = RedisTimeoutError(late) if fence else self._too_few(ballot)
        request.in_trouble(trouble)
        return trouble

    async def _vote(self, request: Request) -> Ballot:
        """Ask all servers for a lease at once, and return as soon as their answers decide it."""
        # One secret everywhere, behind the id of the session that speaks to the server (W23).
        ballot, own = Ballot(len(self.grantors), self._quorum), own_part(self.context.new_token())
        known: asyncio.Future[None] = self.context.loop.create_future()

        def on_answer(at: int, part: Part, future: "asyncio.Future[Answer]") -> None:
            if future.cancelled():
                return
            answer = future.exception() or future.result()
            if isinstance(answer, Granted):
                ballot.yes[at] = answer.fence
            elif isinstance(answer, Exception):
                ballot.failed[at] = answer
            elif isinstance(answer, Busy) and answer.young:  # W22: it has no vote
                ballot.failed[at] = too_young(part.request.retry_after or 0.0)
            else:
                ballot.no[at] = part.request.retry_after or 0.0
            self._look(ballot, _decided, known)

        request.divide([
            # equivalent: 2, a vote never waits in line
            Part(grantor, request.part(1, wait=False, token=context.id + own))
            for grantor, context in zip(self.grantors, self._contexts, strict=True)
        ])  # fmt: skip
        for at, part in enumerate(request.parts):
            part.grantor.context.tokens[part.request.token] = part.request
            asked = asyncio.ensure_future(part.grantor.grant(part.request))
            asked.add_done_callback(partial(on_answer, at, part))
        try:
            await self._wait(known, request.terms.ttl)
        finally:  # also if the caller's time is over, as its error says how it stood
            if ballot.won:
                request.busy_for(None)
            elif ballot.answered:
                request.busy_for(ballot.free_after())
            elif request.obstacle is None:  # otherwise the attempt before says more
                request.in_trouble(self._too_few(ballot))
        return ballot

    async def _agree(self, request: Request, fence: int) -> tuple[int, Ballot]:
        """Make a majority accept a fencing token, *fence* or a larger one (P8). Return 0 if too few answered."""
        while True:
            args: Arguments = (request.parts[0].request.token, fence)
            for extension in request.extensions:
                args += extension.arguments()
            ballot = await self._poll("raise", args, request.terms.ttl, _decided)
            if ballot.won:
                return fence, ballot
            if not ballot.no:
                return 0, ballot
            fence = int(max(ballot.no.values())) + 1

    async def _poll(self, verb: str, args: Arguments, ttl: float, enough: Enough) -> Ballot:
        """Run a script on all servers at once, and return their answers when *enough* says so.

        A number is a vote: 0 is yes. A larger number is no; a negative one says for how many ms the server is too young
        (W22). Any other reply counts as yes.
        """
        ballot = Ballot(len(self._routes), self._quorum)
        known: asyncio.Future[None] = self.context.loop.create_future()

        def on_reply(at: int, call: PendingCall, reply: RawReply) -> None:
            if isinstance(reply, Exception):
                ballot.failed[at] = reply
            else:
                check_reply(call.command.name, reply)
                if not isinstance(reply, int) or reply == 0:
                    ballot.yes[at] = reply
                elif reply > 0:
                    ballot.no[at] = reply
                else:
                    ballot.failed[at] = too_young(-reply / 1000)
            self._look(ballot, enough, known)

        script = load(f"redlock/{verb}")
        # Packed each time: a template for each fencing token would serve once.
        command = PreparedScript(script, script.keys_of(self._keys.base, self._keys.base, args))
        for at, route in enumerate(self._routes):
            route.submit(command, args, partial(on_reply, at), vote_timeout(ttl))
        await self._wait(known, ttl)
        return ballot

    def _look(self, ballot: Ballot, enough: Enough, known: "asyncio.Future[None]") -> None:
        """Resolve *known* when *enough* says so."""
        seconds = enough(ballot)
        if seconds:
            self.context.loop.call_later(seconds, resolve, known, None)
        elif seconds is not None:
            resolve(known, None)

    async def _wait(self, known: "asyncio.Future[None]", ttl: float) -> None:
        """Wait for *known*, or until the servers have had their time."""
        timer = self.context.loop.call_later(vote_timeout(ttl), resolve, known, None)
        try:
            await known
        finally:
            timer.cancel()

    async def _ask_all(self, verb: str, ttl: float, enough: Enough, is_known: Callable[[Ballot], bool]) -> Ballot:
        """Run a script on all servers; see `_poll`. Raise QuorumError if the answers are not enough for *is_known*."""

        async def ask() -> Ballot:
            ballot = await self._poll(verb, (), ttl, enough)
            if not is_known(ballot):
                raise self._too_few(ballot)
            return ballot

        clock = self.context.clock
        with self.keep_open():
            return await ride_out(ask, clock, clock() + REPLY_TIMEOUT)

    async def statistics(self, ttl: float) -> tuple[bool, int, int]:
        """Return whether a majority is held, the last fencing token, and the server time in ms until which only
        `min_hold` keeps it. That is 0 if `min_hold` does not keep it, or a majority may have a holder.
        """
        ballot = await self._ask_all(
            "statistics", ttl, _standing_is_known, lambda ballot: isinstance(_standing(ballot)[0], bool)
        )
        taken, held = _standing(ballot)
        fence, kept_until_ms = (max(reply[at] for reply in ballot.yes.values()) for at in (1, 2))
        return taken is True, fence, kept_until_ms if taken is True and held is False else 0

    async def holders(self, ttl: float) -> tuple[Holder, ...]:
        """Return the holder of the name on a majority of all servers, if there is one."""
        with self.keep_open():
            ballot = await self._ask_all(
                "holders", ttl, lambda ballot: None if ballot.pending else 0.0, lambda ballot: ballot.won
            )
            rows = {at: row for at, reply in ballot.yes.items() for row in holder_rows(reply[1:])}
            for digest in {row.digest for row in rows.values()}:
                same = {at: row for at, row in rows.items() if row.digest == digest}
                if len(same) >= self._quorum:
                    return (await self._holder(same),)
        return ()

    async def _holder(self, rows: Mapping[int, HolderRow]) -> Holder:
        """Return the holder that several servers report. Its lease lasts as long as on a majority of them."""
        named = [(await names_of(self.grantors[at], [row]))[0] for at, row in sorted(rows.items())]
        left = sorted((row.left_ms for row in rows.values()), reverse=True)[self._quorum - 1]
        newest = max(rows.values(), key=lambda row: row.fence)
        known = next((name for name in named if name.host is not None), named[0])
        return holder_of(newest._replace(left_ms=left), known, self.grantors[0])

    async def revoke(
        # equivalent: constant, nothing ends without targets
        self, ttl: float, targets: Sequence[bytes] = (), tombstone_ms: int = 0, reason: bytes = b""
    ) -> list[tuple[bytes, int, float]]:  # fmt: skip
        """Ask each server for its holder. Revoke the lease (W16) if *targets* has the own part of its token.

        With *tombstone_ms* the lease is ended at once. *reason* is for its holder.

        Return, of each server that answered: the own part of the holder's token, or an empty one; its fencing token, or
        0; and the seconds that its lease has left. Raise QuorumError if a majority may have another holder.
        """

        def enough(ballot: Ballot) -> float | None:
            if not ballot.pending:
                return 0.0
            return MIN_VOTE_TIMEOUT if len(ballot.yes) >= self.blocking else None

        async def ask(_: int) -> list[tuple[bytes, int, float]]:
            ballot = await self._poll("revoke", (tombstone_ms, reason, *targets), ttl, enough)
            if len(ballot.yes) < self.blocking:
                raise self._too_few(ballot, self.blocking)
            return [(own, fence, left_ms / 1000) for own, fence, left_ms in ballot.yes.values()]

        clock = self.context.clock
        return await ask_until(
            ask, clock, clock() + PATIENCE, again=lambda error: isinstance(error, QuorumError), span=PATIENCE
        )

    def _too_few(self, ballot: Ballot, needed: int = 0) -> QuorumError:
        """Return the error for too few answers, with the outcome of each server."""
        outcomes = dict.fromkeys(self._places, "no answer in time")
        outcomes |= dict.fromkeys((self._places[at] for at in (*ballot.yes, *ballot.no)), "answered")
        outcomes |= {self._places[at]: str(each) or type(each).__name__ for at, each in ballot.failed.items()}
        count = len(ballot.yes) + len(ballot.no)
        text = f"{self.kind} {self.name!r}: {count} of {ballot.size} servers answered in time, and it takes "
        text += f"{needed or ballot.needed} ({'; '.join(': '.join(outcome) for outcome in outcomes.items())})"
        error = QuorumError(text, name=self.name, outcomes=outcomes)
        too_early = [failure for failure in ballot.failed.values() if isinstance(failure, NotNowError)]
        if too_early and count + len(too_early) >= ballot.needed:
            error.__cause__ = too_early[0]
        return error


def _decided(ballot: Ballot) -> float | None:
    """Return how long to wait for the other servers, if the vote is decided.

    If too few can answer, it waits briefly for the others, because the error gives the outcome of each. A server that
    hangs must not delay the next attempt for longer.
    """
    if not ballot.decided:
        return None
    return 0.0 if ballot.answered or not ballot.pending else MIN_VOTE_TIMEOUT


def _standing(ballot: Ballot) -> tuple[bool | Exception | None, bool | Exception | None]:
    """Return whether a majority is taken, and whether by a holder rather than kept by `min_hold` (W18)."""
    taken = ballot.split(lambda reply: reply[0] == 1)
    held = ballot.split(lambda reply: reply[0] == 1 and not reply[2])
    return taken.verdict(), held.verdict()


def _standing_is_known(ballot: Ballot) -> float | None:
    taken, held = _standing(ballot)
    return None if taken is None or (taken is True and held is None) else 0.0


def _patience(request: Request, error: QuorumError) -> float:
    """Return the seconds for which attempts are repeated that fail with *error*."""
    longest = request.terms.ttl if request.reached and request.wait else PATIENCE
    if came_too_early(error):
        return max(longest, REPLY_TIMEOUT) if request.wait else 0.0
    return longest


def vote_timeout(ttl: float) -> float:
    """Return the seconds that a server has to answer: much less than a lease, as Redlock requires."""
    return max(MIN_VOTE_TIMEOUT, min(MAX_VOTE_TIMEOUT, ttl / 4))
