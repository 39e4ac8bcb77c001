"""Several Grantors in one order for all callers: all of them are granted, or none, and there is no deadlock (W12).

A Grantor made of Grantors. The one rule: a waiter holds only the names before the name that it waits for. All missing
names are asked for at once, without waiting, and those granted out of order are given back before it queues. The leases
held are renewed like any other. If one is lost, the whole attempt starts again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import final

from .._core.answers import UNCERTAIN
from .._core.errors import LeaseLostError
from .._core.events import Kind
from .._core.options import Options
from .._engine.acquire import Acquisition
from .._engine.context import Context, Grantor, Guarding
from .._engine.extension import Extension
from .._engine.lease_state import LeaseState, Validity
from .._engine.release import GRACE
from .._engine.request import Answer, Busy, Full, Granted, Queued, Request
from .parts import Composite, Part, all_granted, end


@final
class AllOf(Composite):
    """Decides over several names together, for one acquisition; *grantors* are in the order that all callers agree on.

    Each part keeps its own fencing token, and the lease has the largest. With *seal* all have the token that it
    returns once all parts are held. It returns 0 if one of them is gone.

    *wishes* are the permits, or the mode, for which each part asks, and its first ticket.
    """

    def __init__(
        self, context: Context, kind: str, name: str, grantors: Sequence[Grantor], options: Options,
        wishes: Sequence[tuple[int, int]] | None = None, seal: Callable[[Request], Awaitable[int]] | None = None,
    ) -> None:  # fmt: skip
        self.context = context
        self.kind = kind
        self.name = name
        self.grantors = grantors  # defect: parts-order
        self._wishes = wishes or [(1, 0)] * len(grantors)
        self.seal = seal
        self._adoptions: Sequence[Extension] = ()
        """The extension by which each part is adopted, if the lease was handed off."""
        self._options = replace(options, renew=True, max_hold=None, on_lost="flag")
        """The options of a part that is kept while the caller waits for others."""

    def adopt(self, adoptions: Sequence[Extension]) -> None:
        """Make each part adopt the lease that is offered. None of them waits."""
        self._adoptions = adoptions

    async def grant(self, request: Request) -> Answer:
        while True:
            answer = await self._grant(request)
            if self.seal is None or not isinstance(answer, Granted):
                return answer
            fence = await self.seal(request)
            if fence:
                for part in request.parts:
                    part.granted(fence)
                return Granted(fence, answer.valid_from)
            _replace_all(request)

    async def _grant(self, request: Request) -> Answer:
        if not request.parts:
            own: list[tuple[Extension, ...]] = [(each,) for each in self._adoptions] or [()] * len(self.grantors)
            request.divide([
                Part(grantor, request.part(amount, False, grantor.context.new_token(), ticket, extensions))
                for grantor, (amount, ticket), extensions in zip(self.grantors, self._wishes, own, strict=True)
            ])  # fmt: skip
        if all(part.fence for part in request.parts):
            renewed = await self.renewed(request)
            if renewed is not None:
                return renewed
            _replace_all(request)
        if not request.wait or self._adoptions:
            return await self._ask_once(request)
        while True:
            try:
                answer = await OrderedAttempt(self.context, request, self._options).acquire()
                if isinstance(answer, Busy):  # W26: a queue is full
                    kept = [part for part in request.parts if part.fence or part.request.unanswered]
                    await self._give_back(request, kept)  # defect: W26-parts
                return answer
            except LeaseLostError:
                _replace_all(request)
            except UNCERTAIN as error:  # although it was asked repeatedly
                request.fail(error)
                return Queued()

    def guarding(self, request: Request) -> Guarding:
        """Return what guards by all parts together. The record of the last run is kept beside the first part."""
        each: list[Guarding] = [part.grantor.guarding(part.request) for part in request.parts]
        holders = tuple(key for held in each for key in held.holders)
        return Guarding(each[0].script, each[0].record, holders, tuple(token for held in each for token in held.tokens))

    async def _ask_once(self, request: Request) -> Answer:
        if self._adoptions:  # W17: the first part decides between callers that adopt the same lease
            (first,) = await _ask_all(request, request.parts[:1])
            if isinstance(first, Exception):
                raise first
            answers = [first, *await _ask_all(request, request.parts[1:])]
        else:
            answers = await _ask_all(request, request.parts)
        granted = [answer for answer in answers if isinstance(answer, Granted)]
        if len(granted) == len(request.parts):
            return all_granted(request, granted)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        pairs = zip(request.parts, answers, strict=True)
        taken = [part for part, answer in pairs if isinstance(answer, Granted)]  # defect: P7-granted-parts
        await self._give_back(request, taken)
        return Busy()

    async def _give_back(self, request: Request, parts: Iterable[Part]) -> None:
        """End parts of a request that is not granted as a whole."""
        until = self.context.clock() + min(GRACE, request.terms.ttl)
        for release in [end(part) for part in parts]:
            await release.settle(until)


_MIN_AT_ONCE = 4
"""Minimum number of parts asked for at once, if so many are missing: the usual few names then cost one round trip."""


@final
class _Kept(LeaseState):
    """A part that is kept while the caller waits for others. It emits no events, as the caller has no lease yet."""

    __slots__ = ()

    def emit(self, kind: Kind, seconds: float) -> None:
        pass


@final
class OrderedAttempt:
    """One try to get all parts of a request, from the first to the last.

    It asks for `_at_once` of the missing parts together. At first these are all; then half as many after each round in
    which one was busy, and twice as many after each round in which all were granted. The amortised cost, with a
    potential of two scripts for each of `_at_once`, is nothing for a round that fails, and three scripts for each part
    that a successful round adds. So n names that become free one by one cost O(n) scripts.

    Invariant: `_held` are the first parts of the request, in their order; `_waiting` is the next part, or None.
    """

    def __init__(self, context: Context, request: Request, options: Options) -> None:
        self._context = context
        self._request = request
        self._options = options
        self._held: list[LeaseState] = []
        self._at_once = len(request.parts)
        self._waiting: Request | None = None

    async def acquire(self) -> Granted | Busy:
        """Return when all are held, or if a queue is full (W26). Raise LeaseLostError if one was lost meanwhile.

        Unless all are held, the caller must give all back.
        """
        request, held = self._request, self._held
        try:
            while len(held) < len(request.parts):
                asked = request.parts[len(held) : len(held) + self._at_once]
                answers = await _ask_all(request, asked)
                granted = [answer for answer in answers if isinstance(answer, Granted)]
                if len(granted) == len(request.parts):
                    return all_granted(request, granted)
                in_order = len(list(takewhile(lambda answer: isinstance(answer, Granted), answers)))
                for part, grant in zip(asked[:in_order], granted, strict=False):
                    self._keep(part, grant)
                if in_order == len(asked):
                    self._at_once *= 2  # equivalent: line dropped + 3, for speed
                    continue
                self._at_once = max(self._at_once // 2, _MIN_AT_ONCE)  # equivalent: 3, for speed
                self._give_back(len(held) + 1, answers[in_order + 1 :])
                if not await self._wait_for(asked[in_order]):
                    return Busy()
            for state in held:
                if not state.end(self._context.clock()):
                    raise state.error()
            # P1: the lease counts from the oldest of its parts
            valid_from = min(state.validity.deadline for state in held) - request.terms.valid_for
            return Granted(max(state.fence for state in held), valid_from)
        finally:
            for state in held:
                state.end(self._context.clock())

    def _give_back(self, first: int, answers: Sequence[Answer | Exception]) -> None:
        """Undo the parts from number *first* on that were, or may have been, granted out of order."""
        parts = [*self._request.parts]
        for at, answer in enumerate(answers, first):
            if not isinstance(answer, Busy):
                parts[at] = _replaced(parts[at])
        self._request.divide(parts)

    async def _wait_for(self, part: Part) -> bool:
        """Queue for a part, and keep it once it is granted. Return False if its queue is full."""
        part.request.may_wait()
        acquisition = Acquisition(self._context, part.grantor, b"", part.request, self._options, None)
        self._waiting = part.request
        try:
            granted = await acquisition.wait_granted()
        finally:
            self._waiting = None  # equivalent: line dropped, the request has failed already
            request = acquisition.request
            part.go_on_as(request)
            self._request.busy_for(request.retry_after)
            if request.reached:
                self._request.was_reached()
        if granted is not None:  # also if it was refused first, as another script was to hand over more (W21)
            self._keep(part, granted)
        elif isinstance(request.obstacle, Full):
            self._request.refused_as(request)
            return False
        for state in self._held:
            if not state.validity.held:
                raise state.error()
        return True

    def _keep(self, part: Part, granted: Granted) -> None:
        """Renew a part while the caller waits for others."""
        part.granted(granted.fence)
        now = self._context.clock()
        context, request, options = self._context, part.request, self._options
        validity = Validity(context, granted.valid_from, request.terms, now, options.max_hold)
        state = _Kept(context, part.grantor, b"", request, options, granted.fence, validity)
        state.call_on_loss(partial(self._stop_waiting, state))
        self._held.append(state)
        state.renew_from(now)

    def _stop_waiting(self, lost: LeaseState) -> None:
        if self._waiting is not None:
            self._waiting.fail(lost.error())


def _replaced(part: Part) -> Part:
    """Undo a part, and return the same part under another token."""
    end(part)
    return Part(part.grantor, part.request.again())


def _replace_all(request: Request) -> None:
    request.divide([_replaced(part) for part in request.parts])


async def _ask_all(request: Request, parts: Sequence[Part]) -> list[Answer | Exception]:
    """Ask for *parts* of *request*, all at once. None of them waits. Raise an error that a retry does not change."""
    request.busy_for(None)
    asked: list[asyncio.Future[Answer]] = []
    for part in parts:
        part.request.ask_again()
        part.grantor.context.tokens[part.request.token] = part.request
        asked.append(asyncio.ensure_future(part.grantor.grant(part.request)))
    try:
        answers = await asyncio.gather(*asked, return_exceptions=True)
    finally:
        if any(part.request.reached for part in parts):
            request.was_reached()
    busy, found = list[float](), list[Answer | Exception]()
    for part, answer in zip(parts, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, UNCERTAIN):
            raise answer
        if isinstance(answer, Busy):
            busy.append(part.request.retry_after or 0.0)
        found.append(answer)
    if busy:
        request.busy_for(max(busy))
    return found
