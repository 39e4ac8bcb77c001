"""Several independent servers that vote on one name: a lease is what most of them grant at the same time.

A Grantor made of Grantors; the algorithm is Redlock, with fencing tokens that increase over any majority: the largest
that was granted is put to all servers, each of which refuses it if it has accepted a larger one, or the same from
another holder; then a larger one is put to them. No caller waits in line at any server, for lines at several could wait
for each other: an attempt that fails is undone everywhere, and repeated after a random delay.
"""

import asyncio
import contextlib
import random
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, final

from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.answers import REPLY_TIMEOUT, NotNowError, ask_until, came_too_early, ride_out
from .._core.errors import QuorumError
from .._core.keys import Keys
from .._core.replies import check_reply
from .._core.tokens import own_part
from .._core.values import Holder
from .._engine.release import GRACE
from .._engine.request import Answer, Busy, Granted, Request, ResultCallback, resolve
from .._redis.endpoints import Pipelines
from .._redis.pipeline import PendingCall
from .._redis.scripts import Arguments, PreparedScript, load
from .composite import Composite, Part, end, release_parts, renew_parts, undo_parts
from .one_server import RedisGrantor
from .uptime import too_young
from .votes import Vote, VoteCount, next_fence, quorum_of
from .who import HolderRow, holder_of, holder_rows, names_of

T = TypeVar("T")

LONGEST_VOTE = 1.0
"""Seconds that a server has to answer in one attempt."""

SHORTEST_VOTE = 0.1

LONGEST_PAUSE = 0.2
"""Seconds between two attempts."""

PATIENCE = 1.0
"""Seconds for which too few servers may answer at first: one that restarts is back by then."""


@final
class Quorum(Composite):
    """Decides over one name by all of *grantors*; the context of the first is the one that keeps the lease."""

    def __init__(self, grantors: Sequence[RedisGrantor], keys: Keys, places: Sequence[str]) -> None:
        self._grantors = grantors
        self._contexts = [grantor.context for grantor in grantors]
        self._routes = [context.pipeline.route(keys.base) for context in self._contexts]
        self._home = self.context = self._contexts[0]
        self._keys = keys
        self._places = places
        self._quorum = quorum_of(len(grantors))
        agreed = keys.part(b"agreed")
        self._raise = PreparedScript(load("redlock/raise"), lambda _: (agreed, keys.part(b"fence")))
        self._who = PreparedScript(load("redlock/holders"), lambda _: (agreed, keys.base))
        self._statistics = PreparedScript(load("redlock/statistics"), lambda _: (agreed, keys.base))
        self._revoke = PreparedScript(load("redlock/revoke"), lambda _: (agreed, keys.base))

    @property
    def name(self) -> str:
        return self._keys.name

    @property
    def kind(self) -> str:
        return self._keys.kind

    async def grant(self, request: Request) -> Answer:
        with contextlib.ExitStack() as stack:
            for context in self._contexts:  # none may end between two attempts
                stack.enter_context(context.keep_open())
            return await self._repeat(request)

    async def _repeat(self, request: Request) -> Answer:
        """Make attempts, until one is granted or the answer must be another."""
        clock = self._home.clock
        if request.parts and request.parts[0].fence:
            whole = await self._refresh(request)
            if whole is not None:
                return whole
        failing_since: float | None = None
        attempts = 0
        while True:
            began = clock()
            answer = await self._attempt(request)
            if isinstance(answer, Granted):
                return answer
            if isinstance(answer, Busy):
                failing_since = None
                if not request.wait:
                    await self._settle(request)
                    return answer
            elif not isinstance(answer, QuorumError):
                failing_since = None
                if not request.wait:
                    self._give_back(request)  # it may be asked for once more
                    raise answer
            else:
                failing_since = began if failing_since is None else failing_since
                if clock() - failing_since >= _patience(request, answer):
                    raise answer
            self._give_back(request)
            attempts += 1
            await asyncio.sleep(self._pause(attempts))

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        renew_parts(request, self._quorum, ttl, tell, thread)

    def undo(self, request: Request, tell: ResultCallback) -> None:
        on_refused = partial(self.part_refused, request)
        if request.parts and request.parts[0].fence:
            release_parts(request, self._quorum, tell, on_refused)
        else:
            undo_parts(request.parts, tell, self._quorum, on_refused)

    def needed(self, request: Request) -> int:
        return self._quorum

    async def _refresh(self, request: Request) -> Granted | None:
        """Renew what was granted a while ago, or give it all back."""
        sent_at = self._home.clock()
        answer: asyncio.Future[bool] = self._home.loop.create_future()
        self.renew(request, request.ttl, partial(resolve, answer))
        if await answer:
            return Granted(request.parts[0].fence, sent_at)
        self._give_back(request)
        return None

    def _give_back(self, request: Request) -> None:
        for part in request.parts:
            end(part)  # defect: P7-votes
        request.parts = ()  # equivalent: line dropped, it is given back once

    async def _settle(self, request: Request) -> None:
        """Undo an attempt, and wait for that a little."""
        until = self._home.clock() + min(GRACE, request.ttl)
        await self._home.undo(self, request, until).settle(until)

    def _pause(self, attempts: int) -> float:
        """Return a random delay, in which a rival whose attempt met with this one may win."""
        round_trip = max(route.round_trip for route in self._routes)
        shortest = max(0.005, min(2 * round_trip, LONGEST_PAUSE / 4))
        return random.uniform(0.5, 1.5) * min(shortest * 2.0 ** min(attempts, 8), LONGEST_PAUSE)

    async def _attempt(self, request: Request) -> Granted | Busy | Exception:
        """Ask all servers once; an exception says why their answers were of no use."""
        began = self._home.clock()
        ballot = await self._vote(request)
        if ballot.won:
            request.was_reached()
            request.in_trouble(None)
            fence, ballot = await self._agree(request, max(ballot.granted.values()))
            if fence and self._home.clock() < began + request.valid_for:
                for part in request.parts:
                    part.fence = fence
                return Granted(fence, began)  # defect: P1-votes
            if fence:
                request.busy_for(None)
                late = RedisTimeoutError(
                    f"{self.kind} {self.name!r}: agreeing took longer than its TTL of {request.ttl:g} s allows"
                )
                request.in_trouble(late)
                return late
        elif ballot.answered:
            request.was_reached()
            request.in_trouble(None)
            request.busy_for(ballot.free_after())
            return Busy()
        request.busy_for(None)
        trouble = self._too_few(ballot)
        request.in_trouble(trouble)
        return trouble

    async def _vote(self, request: Request) -> Vote:
        """Ask all servers at once, and return as soon as their answers decide it."""
        # One secret everywhere; at each server, the id of the session that speaks to it.
        ballot, own = Vote(len(self._grantors)), own_part(self._home.new_token())
        decided: asyncio.Future[None] = self._home.loop.create_future()

        def answered(at: int, part: Part, future: "asyncio.Future[Answer]") -> None:
            if future.cancelled():
                return
            answer = future.exception() or future.result()
            if isinstance(answer, Granted):
                ballot.granted[at] = answer.fence
            elif isinstance(answer, Exception):
                ballot.failed[at] = answer
            elif isinstance(answer, Busy) and answer.young:
                ballot.failed[at] = too_young(part.request.retry_after or 0.0)
            else:
                ballot.busy[at] = part.request.retry_after or 0.0
            self._decide(ballot, decided)

        request.parts = [
            # equivalent: 2, a vote never waits in line
            Part(grantor, request.part(1, wait=False, token=context.id + own))
            for grantor, context in zip(self._grantors, self._contexts, strict=True)
        ]
        for at, part in enumerate(request.parts):
            part.grantor.context.tokens[part.request.token] = part.request
            asked = asyncio.ensure_future(part.grantor.grant(part.request))
            asked.add_done_callback(partial(answered, at, part))
        try:
            await self._within(decided, request.ttl)
        except asyncio.CancelledError:
            if ballot.won:
                request.in_trouble(None)
                raise
            if ballot.answered:  # what to say if the caller's time is over
                request.busy_for(ballot.free_after())
            elif request.retry_after is None and request.trouble is None:  # else the attempt before tells more
                request.in_trouble(self._too_few(ballot))
            raise
        return ballot

    async def _agree(self, request: Request, fence: int) -> tuple[int | None, Vote]:
        """Have a majority accept a fencing token, *fence* if that will do; None if too few answered."""
        while True:
            args: Arguments = (request.parts[0].request.token, fence)
            for extension in request.extensions:
                args += extension.arguments()
            ballot = await self._ask_all(self._raise, args, request.ttl)
            if ballot.won:
                return fence, ballot
            if not ballot.busy:
                return None, ballot
            fence = next_fence(ballot.busy.values())

    async def _ask_all(self, bound: PreparedScript, args: Arguments, ttl: float) -> Vote:
        """Run a script everywhere that answers 0 for yes; below 0 that the server is too young, in ms; what else it
        answers counts as busy."""
        ballot = Vote(len(self._contexts))
        decided: asyncio.Future[None] = self._home.loop.create_future()

        def answered(at: int, call: PendingCall, reply: Any) -> None:
            if not isinstance(reply, Exception):
                check_reply(call.bound.name, reply)
            if isinstance(reply, Exception):
                ballot.failed[at] = reply
            elif reply < 0:
                ballot.failed[at] = too_young(-reply / 1000)
            elif reply == 0:
                ballot.granted[at] = 0
            else:
                ballot.busy[at] = reply
            self._decide(ballot, decided)

        for at, route in enumerate(self._routes):
            route.submit(bound, args, partial(answered, at), vote_time(ttl))
        await self._within(decided, ttl)
        return ballot

    def _decide(self, ballot: Vote, decided: "asyncio.Future[None]") -> None:
        """Resolve *decided* once it is known what has become of the vote.

        Where too few can answer, the others are given a moment: the error says of each server what became of it. No
        more than that, or one that hangs would keep the others from being asked again as soon as they are back.
        """
        if ballot.decided:
            if ballot.answered or not ballot.pending:
                resolve(decided, None)
            else:
                self._home.loop.call_later(SHORTEST_VOTE, resolve, decided, None)

    async def statistics(self, ttl: float) -> tuple[bool, int, int]:
        """Return whether a majority is held, the last fencing token, and the server time in ms until which only
        `min_hold` keeps it. That is 0 if `min_hold` does not keep it, or a majority may have a holder.

        Raises:
            QuorumError: Too few servers answered for that to be known.
        """
        clock = self._home.clock
        with contextlib.ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context.keep_open())
            return await ride_out(partial(self._count, ttl), clock, clock() + REPLY_TIMEOUT)

    async def _count(self, ttl: float) -> tuple[bool, int, int]:
        fences, ends = [0], [0]
        size = len(self._contexts)
        ballot = Vote(size)
        decided: asyncio.Future[None] = self._home.loop.create_future()
        taken, held = (
            VoteCount(size, self._quorum),
            VoteCount(size, self._quorum),
        )  # taken: by a holder or by min_hold; held: by a holder

        def answered(at: int, call: PendingCall, reply: Any) -> None:
            if isinstance(reply, Exception):
                ballot.failed[at] = reply
                taken.note(reply)
                held.note(reply)
            else:
                check_reply(call.bound.name, reply)
                is_taken, ballot.granted[at], kept_until_ms = reply
                fences.append(ballot.granted[at])
                ends.append(kept_until_ms)
                taken.note(is_taken == 1)
                held.note(is_taken == 1 and not kept_until_ms)
            verdict = taken.verdict()
            if verdict is not None and (verdict is not True or held.verdict() is not None):
                resolve(decided, None)

        for at, route in enumerate(self._routes):
            route.submit(self._statistics, (), partial(answered, at), vote_time(ttl))
        await self._within(decided, ttl)
        verdict = taken.verdict()
        if not isinstance(verdict, bool):
            raise self._too_few(ballot)
        return verdict, max(fences), max(ends) if verdict and held.verdict() is False else 0

    async def holders(self, ttl: float) -> tuple[Holder, ...]:
        """Return who holds the name on a majority of all servers.

        Raises:
            QuorumError: Too few servers answered.
        """
        clock = self._home.clock
        with contextlib.ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context.keep_open())
            rows = await ride_out(partial(self._ask_who, ttl), clock, clock() + REPLY_TIMEOUT)
            for digest in {row.digest for row in rows.values()}:
                same = {at: row for at, row in rows.items() if row.digest == digest}
                if len(same) >= self._quorum:
                    return (await self._holder(same),)
        return ()

    async def _ask_who(self, ttl: float) -> dict[int, HolderRow]:
        """Return the holder at each server that answers in time and has one."""
        ballot = Vote(len(self._contexts))
        decided: asyncio.Future[None] = self._home.loop.create_future()
        rows: dict[int, HolderRow] = {}

        def answered(at: int, call: PendingCall, reply: Any) -> None:
            if isinstance(reply, Exception):
                ballot.failed[at] = reply
            else:
                check_reply(call.bound.name, reply)
                ballot.granted[at] = 0
                rows.update(zip([at], holder_rows(reply[1:]), strict=False))
            if len(ballot.failed) + len(ballot.granted) == ballot.size:
                resolve(decided, None)

        for at, route in enumerate(self._routes):
            route.submit(self._who, (), partial(answered, at), vote_time(ttl))
        await self._within(decided, ttl)
        if len(ballot.granted) < self._quorum:
            raise self._too_few(ballot)
        return dict(rows)

    async def _holder(self, rows: Mapping[int, HolderRow]) -> Holder:
        """Return as one what several servers tell of the same lease: it lasts for as long as on a majority."""
        named = [(await names_of(self._grantors[at], [row]))[0] for at, row in sorted(rows.items())]
        left = sorted((row.left_ms for row in rows.values()), reverse=True)[self._quorum - 1]
        newest = max(rows.values(), key=lambda row: row.fence)
        known = next((name for name in named if name.host is not None), named[0])
        return holder_of(newest._replace(left_ms=left), known, self._grantors[0])

    @contextlib.contextmanager
    def keep_open(self) -> Generator[None, None, None]:
        """Keep the sessions of all servers while several questions are asked."""
        with contextlib.ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context.keep_open())
            yield

    async def who_holds(
        self, ttl: float, meant: Sequence[bytes] = (), tombstone_ms: int = 0
    ) -> list[tuple[bytes, int, float]]:
        """Ask each server who holds it there; what *meant* hold is revoked, at once if *tombstone_ms* says so.

        Returns:
            For each that answered: the own part of the holder's token, or an empty one; its fencing token, or 0; and
            the seconds that its lease has left.

        Raises:
            QuorumError: So few answered that a majority might be held by others, or not be revoked.
        """
        clock = self._home.clock
        ask = partial(self._who_holds, ttl, (tombstone_ms, *meant))
        until = clock() + PATIENCE
        return await ask_until(
            lambda _: ask(), clock, until, again=lambda error: isinstance(error, QuorumError), span=PATIENCE
        )

    async def _who_holds(self, ttl: float, args: Arguments) -> list[tuple[bytes, int, float]]:
        ballot = Vote(len(self._contexts))
        decided: asyncio.Future[None] = self._home.loop.create_future()
        found: list[tuple[bytes, int, float]] = []

        def answered(at: int, call: PendingCall, reply: Any) -> None:
            if isinstance(reply, Exception):
                ballot.failed[at] = reply
            else:
                check_reply(call.bound.name, reply)
                ballot.granted[at] = 0
                found.append((reply[0], reply[1], reply[2] / 1000))
            if not ballot.pending:
                resolve(decided, None)
            elif len(found) == self.blocking:  # the others are given a moment
                self._home.loop.call_later(SHORTEST_VOTE, resolve, decided, None)

        for at, route in enumerate(self._routes):
            route.submit(self._revoke, args, partial(answered, at), vote_time(ttl))
        await self._within(decided, ttl)
        if len(found) < self.blocking:
            raise self._too_few(ballot, self.blocking)
        return list(found)

    @property
    def blocking(self) -> int:
        """So many servers keep the others from being a majority."""
        return len(self._grantors) - self._quorum + 1

    async def _within(self, decided: "asyncio.Future[T]", ttl: float) -> T:
        """Wait for a decision, or until those who have not answered have had their time."""
        timer = self._home.loop.call_later(vote_time(ttl), resolve, decided, None)
        try:
            return await decided
        finally:
            timer.cancel()

    def _too_few(self, ballot: Vote, needed: int = 0) -> QuorumError:
        outcomes: dict[str, str] = {}
        for at, place in enumerate(self._places):
            if at in ballot.failed:
                outcomes[place] = str(ballot.failed[at]) or type(ballot.failed[at]).__name__
            elif at in ballot.granted or at in ballot.busy:
                outcomes[place] = "answered"
            else:
                outcomes[place] = "no answer in time"
        count = len(ballot.granted) + len(ballot.busy)
        told = "; ".join(f"{place}: {outcome}" for place, outcome in outcomes.items())
        error = QuorumError(
            f"{self.kind} {self.name!r}: {count} of {ballot.size} servers answered in time, and it takes "
            f"{needed or ballot.quorum} ({told})",
            name=self.name,
            outcomes=outcomes,
        )
        too_early = [failure for failure in ballot.failed.values() if isinstance(failure, NotNowError)]
        if too_early and count + len(too_early) >= ballot.quorum:
            error.__cause__ = too_early[0]
        return error


def _patience(request: Request, error: QuorumError) -> float:
    """Return the seconds for which too few servers may answer in the way that *error* says."""
    longest = request.ttl if request.reached else PATIENCE
    if came_too_early(error):
        return max(longest, REPLY_TIMEOUT) if request.wait else 0.0
    return longest


def vote_time(ttl: float) -> float:
    """Return the seconds that a server has to answer: much less than a lease, as Redlock wants it."""
    return max(SHORTEST_VOTE, min(LONGEST_VOTE, ttl / 4))
