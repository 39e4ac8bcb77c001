"""Several Grantors taken one after the other, in one order for all callers: all of them, or none, and no deadlock.

A Grantor made of Grantors. The one rule: a waiter holds only what comes before what it waits for. So what is
missing is asked for at once without waiting, and what was granted out of turn is given back before it waits in line.
If this happens repeatedly, fewer of the missing ones are asked for together, so that n names that come free one by one
cost O(n) scripts. The leases held meanwhile are renewed like any other. When one of them is lost, the whole attempt
starts again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import cast, final

from .._core.answers import UNCERTAIN
from .._core.errors import LeaseLostError
from .._core.events import Kind
from .._core.options import Options
from .._engine.acquire import Acquisition
from .._engine.context import Context, Grantor, Holding
from .._engine.extension import Extension
from .._engine.guard import Guarding
from .._engine.lease_state import LeaseState
from .._engine.release import GRACE
from .._engine.request import Answer, Busy, Granted, Queued, Request, ResultCallback, resolve
from .._redis.endpoints import Pipelines
from .composite import Composite, Part, all_granted, end, release_parts, renew_parts, undo_parts


@final
class AllOf(Composite):
    """Decides over several names together; *grantors* are in the order that all callers agree on.

    One serves one acquisition. The fencing token that it grants is the largest; each part keeps its own. Or all have
    the one that *seal* returns when all are held; it returns 0 if one of them is gone.

    *wishes* are the permits, or the mode, that each is asked for, and the ticket that it begins with.
    """

    def __init__(
        self, context: Context, kind: str, name: str, grantors: Sequence[Grantor], options: Options,
        wishes: Sequence[tuple[int, int]] | None = None, seal: Callable[[Request], Awaitable[int]] | None = None,
    ) -> None:  # fmt: skip
        self.context = context
        self._kind = kind
        self._name = name
        self.grantors = grantors  # defect: parts-order
        self._wishes = wishes or [(1, 0)] * len(grantors)
        self._seal = seal
        self.sealed = seal is not None
        """Whether all parts have one fencing token."""
        self._adoptions: Sequence[Extension] = ()
        """What each part is adopted by, if the lease was handed off."""
        self._options = replace(options, renew=True, max_hold=None, on_lost="flag")
        """How parts are kept while others are waited for."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def kind(self) -> str:
        return self._kind

    def adopt(self, adoptions: Sequence[Extension]) -> None:
        """Have each part adopt what is offered. None of them waits."""
        self._adoptions = adoptions

    async def grant(self, request: Request) -> Answer:
        while True:
            answer = await self._grant(request)
            if self._seal is None or not isinstance(answer, Granted):
                return answer
            fence = await self._seal(request)
            if fence:
                for part in request.parts:
                    part.fence = fence
                return Granted(fence, answer.valid_from)
            self._begin_anew(request)

    async def _grant(self, request: Request) -> Answer:
        if not request.parts:
            own: list[tuple[Extension, ...]] = [(each,) for each in self._adoptions] or [()] * len(self.grantors)
            request.parts = [
                Part(grantor, request.part(permits, False, grantor.context.new_token(), ticket, extensions))
                for grantor, (permits, ticket), extensions in zip(self.grantors, self._wishes, own, strict=True)
            ]
        if all(part.fence for part in request.parts):
            whole = await self._refresh(request)
            if whole is not None:
                return whole
        if not request.wait or self._adoptions:
            return await self._ask_once(request)
        while True:
            try:
                return await OrderedAttempt(self.context, request, self._options).take()
            except LeaseLostError:
                self._begin_anew(request)
            except UNCERTAIN as error:  # although it was asked again and again
                request.in_trouble(error)  # equivalent: line dropped, the turn fails with it at once
                request.fail(error)
                return Queued()

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        renew_parts(request, len(request.parts), ttl, tell, thread)

    def undo(self, request: Request, tell: ResultCallback) -> None:
        on_refused = partial(self.part_refused, request)
        if all(part.fence for part in request.parts):
            release_parts(request, len(request.parts), tell, on_refused)
        else:
            undo_parts(request.parts, tell, on_refused=on_refused)

    def guarding(self, request: Request) -> Holding:
        """Return what all parts hold together; the answers are kept beside the first."""
        each = [cast("Guarding", part.grantor).guarding(part.request) for part in request.parts]
        holders = tuple(key for held in each for key in held.holders)
        return Holding(each[0].script, each[0].record, holders, tuple(token for held in each for token in held.tokens))

    def _begin_anew(self, request: Request) -> None:
        for part in request.parts:
            end(part)
        request.parts = [fresh_part(part) for part in request.parts]

    async def _refresh(self, request: Request) -> Granted | None:
        """Renew what was granted a while ago, or give it all back."""
        sent_at = self.context.clock()
        answer: asyncio.Future[bool] = self.context.loop.create_future()
        self.renew(request, request.ttl, partial(resolve, answer))
        if await answer:
            return Granted(max(part.fence for part in request.parts), sent_at)
        self._begin_anew(request)
        return None

    async def _ask_once(self, request: Request) -> Answer:
        if self._adoptions:  # W17: the first decides between callers that adopt the same
            (first,) = await ask_all(request, request.parts[:1])
            if isinstance(first, Exception):
                raise first
            answers = [first, *await ask_all(request, request.parts[1:])]
        else:
            answers = await ask_all(request, request.parts)
        granted = [answer for answer in answers if isinstance(answer, Granted)]
        if len(granted) == len(request.parts):
            return all_granted(request, granted)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        for part, answer in zip(request.parts, answers, strict=True):
            if isinstance(answer, Granted):  # defect: P7-granted-parts
                until = self.context.clock() + min(GRACE, request.ttl)
                await end(part).settle(until)
        return Busy()


_FEWEST = 4
"""Minimum number of parts asked for together, if so many are missing: the usual few names then cost one round trip."""


@final
class _Kept(LeaseState):
    """A part that is kept while others are waited for: no event, as the caller has nothing yet."""

    __slots__ = ()

    def emit(self, kind: Kind, seconds: float) -> None:
        pass


@final
class OrderedAttempt:
    """One try to get all parts of a request, from the first to the last.

    It asks for `_together` of the missing parts at once. At first these are all; then half as many after each round in
    which one was busy, and twice as many after each round in which all were granted. The amortised cost, with a
    potential of two scripts for each of `_together`, is nothing for a round that fails, and three scripts for each part
    that a successful round adds.

    Invariant: `_held` are the first parts of the request, in their order; `_waiting` is the one behind them, or None.
    """

    def __init__(self, context: Context, request: Request, options: Options) -> None:
        self._context = context
        self._request = request
        self._options = options
        self._held: list[LeaseState] = []
        self._together = len(request.parts)
        self._waiting: Request | None = None

    async def take(self) -> Granted:
        """Return when all are held.

        Raises:
            LeaseLostError: One that was held is lost; all must be given back.
            RedisError: One could not be asked for.
        """
        try:
            while len(self._held) < len(self._request.parts):
                asked = self._request.parts[len(self._held) : len(self._held) + self._together]
                answers = await ask_all(self._request, asked)
                granted = [answer for answer in answers if isinstance(answer, Granted)]
                if len(granted) == len(self._request.parts):
                    return all_granted(self._request, granted)
                in_turn = list(takewhile(lambda answer: isinstance(answer, Granted), answers))
                for part, lease in zip(asked, granted[: len(in_turn)], strict=False):
                    self._keep(part, lease)
                if len(in_turn) == len(asked):
                    self._together *= 2
                    continue
                self._together = max(self._together // 2, _FEWEST)
                self._give_back(asked[len(in_turn) + 1 :], answers[len(in_turn) + 1 :])
                await self._wait_in_line(asked[len(in_turn)])
            return self._all_held()
        finally:
            for state in self._held:
                state.end(self._context.clock())

    def _give_back(self, parts: Sequence[Part], answers: Sequence[Answer | Exception]) -> None:
        """Undo what was granted out of turn, or may have been; it will be asked for under another token."""
        instead = {
            id(part): fresh_part(part)
            for part, answer in zip(parts, answers, strict=True)
            if not isinstance(answer, Busy)
        }
        for part in parts:
            if id(part) in instead:
                end(part)
        self._request.parts = [instead.get(id(part), part) for part in self._request.parts]

    async def _wait_in_line(self, part: Part) -> None:
        part.request.wait = True
        acquisition = Acquisition(self._context, part.grantor, b"", part.request, self._options, None, None)
        self._waiting = part.request
        try:
            granted = await acquisition.wait_granted()
        finally:
            self._waiting = None  # equivalent: line dropped, the request has failed already
            request = part.request = acquisition.request
            self._request.busy_for(request.retry_after)
            if request.reached:
                self._request.was_reached()
        if granted is not None:
            self._keep(part, granted)
        for state in self._held:
            if not state.held:
                raise state.error()

    def _keep(self, part: Part, granted: Granted) -> None:
        """Renew a part while others are waited for."""
        part.fence = granted.fence
        now = self._context.clock()
        state = _Kept(self._context, part.grantor, b"", part.request, self._options, granted, now)
        state.call_on_loss(partial(self._lost, state))
        self._held.append(state)
        state.renew_from(now)

    def _lost(self, state: LeaseState) -> None:
        if self._waiting is not None:
            self._waiting.fail(state.error())

    def _all_held(self) -> Granted:
        for state in self._held:
            if not state.end(self._context.clock()):
                raise state.error()
        valid_from = min(state.deadline for state in self._held) - self._request.valid_for
        return Granted(max(state.fence for state in self._held), valid_from)


def fresh_part(part: Part) -> Part:
    """Return the same part under another token."""
    return Part(part.grantor, part.request.again())


async def ask_all(request: Request, parts: Sequence[Part]) -> list[Answer | Exception]:
    """Ask for *parts* of *request*, all at once; none of them waits in line.

    Raises:
        RedisError: One was refused in a way that asking again does not change.
    """
    request.busy_for(None)
    asked: list[asyncio.Future[Answer]] = []
    for part in parts:
        part.request.wait = False
        part.grantor.context.tokens[part.request.token] = part.request
        asked.append(asyncio.ensure_future(part.grantor.grant(part.request)))
    try:
        answers = await asyncio.gather(*asked, return_exceptions=True)
    finally:
        if any(part.request.reached for part in parts):
            request.was_reached()
    busy: list[float] = []
    found: list[Answer | Exception] = []
    for part, answer in zip(parts, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, UNCERTAIN):
            raise answer
        if isinstance(answer, Busy):
            busy.append(part.request.retry_after or 0.0)
        found.append(answer)
    if busy:
        request.busy_for(max(busy))
    return found
