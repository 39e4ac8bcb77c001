"""Parts of one lease on several names or servers: how they are renewed and ended, and how their answers are counted.

Each part has an undo of its own, so a server that cannot be reached does not delay the others.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast, final

from .._core.answers import resolve
from .._engine.context import Context, Grantor
from .._engine.release import Release
from .._engine.request import Granted, Request, ResultCallback
from .._redis.endpoints import Pipelines

if TYPE_CHECKING:
    from .one_server import RedisGrantor


def quorum_of(size: int) -> int:
    """Return how many of *size* servers are a majority. Any two majorities have a server in common."""
    return size // 2 + 1  # defect: P8-quorum


@final
@dataclass(slots=True, eq=False, repr=False)
class Ballot:
    """The answers of *size* servers, or parts, to one question; *needed* of them must be yes.

    Invariant: each server is in at most one of `yes`, `no` and `failed`, by its number, in order of the answers.
    """

    size: int
    needed: int
    yes: dict[int, Any] = field(default_factory=dict[int, Any])
    """With the reply; of a vote, with the fencing token that was granted."""
    no: dict[int, float] = field(default_factory=dict[int, float])
    """With the seconds that the other holder's lease has left, or with the fencing token that is too large."""
    failed: dict[int, Exception] = field(default_factory=dict[int, Exception])

    @property
    def pending(self) -> int:
        return self.size - len(self.yes) - len(self.no) - len(self.failed)

    @property
    def won(self) -> bool:
        return len(self.yes) >= self.needed

    @property
    def answered(self) -> bool:
        """Whether enough servers have answered, be it yes or no."""
        return len(self.yes) + len(self.no) >= self.needed

    @property
    def decided(self) -> bool:
        """Whether no missing answer can change `won`, nor `answered` if it is not won."""
        possible = len(self.yes) + self.pending >= self.needed
        answerable = len(self.yes) + len(self.no) + self.pending >= self.needed
        return self.won or (not possible and (self.answered or not answerable))

    def verdict(self, *, patient: bool = False) -> bool | Exception | None:
        """Return what no missing answer can change, or None.

        True means that enough said yes. False means that too many said no. If failures leave both open, it is the last
        failure; *patient* returns that only when all have answered.
        """
        max_no = self.size - self.needed
        if self.won:
            return True
        if len(self.no) > max_no:
            return False
        possible = len(self.yes) + self.pending >= self.needed or len(self.no) + self.pending > max_no
        return None if possible or (patient and self.pending) else [*self.failed.values()][-1]

    def split(self, says_yes: Callable[[Any], bool]) -> "Ballot":
        """Return the ballot on another question, to which each reply is yes if *says_yes* returns True for it."""
        ballot = Ballot(self.size, self.needed, failed=self.failed)
        for at, reply in self.yes.items():
            if says_yes(reply):
                ballot.yes[at] = reply
            else:
                ballot.no[at] = 0
        return ballot

    def free_after(self) -> float:
        """Return the seconds until enough servers are free, if no other lease there is renewed or released."""
        missing = self.needed - len(self.yes)
        waits = sorted(self.no.values())
        return waits[min(missing, len(waits)) - 1] if missing > 0 and waits else 0.0


def counting(size: int, needed: int, on_verdict: ResultCallback, *, patient: bool = False) -> ResultCallback:
    """Return the callback for each of *size* answers. *on_verdict* gets the verdict of their `Ballot`, once."""
    ballot = Ballot(size, needed)

    def count(answer: bool | Exception) -> None:
        known = ballot.verdict(patient=patient)
        at = size - ballot.pending
        if isinstance(answer, Exception):
            ballot.failed[at] = answer
        elif answer:
            ballot.yes[at] = True  # equivalent: constant, nothing reads it
        else:
            ballot.no[at] = 0
        verdict = ballot.verdict(patient=patient)
        if known is None and verdict is not None:
            on_verdict(verdict)

    return count


@final
@dataclass(slots=True, eq=False, repr=False)
class Part:
    """One of several requests that are one lease together, with its grantor."""

    grantor: Grantor
    request: Request
    fence: int = 0
    """The fencing token that it was granted with, or 0."""
    ended: bool | None = None
    """What the server answered when it was undone."""

    def granted(self, fence: int) -> None:
        self.fence = fence

    def go_on_as(self, request: Request) -> None:
        """Note that it is asked for again, by another request."""
        self.request = request


class Composite:
    """A Grantor made of Grantors. A request of it has `parts`, and is granted once each of them has a fence."""

    context: Context
    together = None

    def needed(self, request: Request) -> int:
        """Return how many parts of *request* must answer yes: all of them, or a majority."""
        return len(request.parts)

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        parts = request.parts

        def on_verdict(renewed: bool | Exception) -> None:
            revoked = [part.request for part in parts if part.request.revoked]
            if renewed is False and revoked:  # W16
                request.was_revoked(max(each.why_revoked for each in revoked))
            tell(renewed)

        count = counting(len(parts), self.needed(request), on_verdict)
        for part in parts:
            part.grantor.renew(part.request, ttl, count, thread)

    async def renewed(self, request: Request) -> Granted | None:
        """Renew a lease that was granted a while ago. Return None if it is gone."""
        sent_at = self.context.clock()
        answer: asyncio.Future[bool] = self.context.loop.create_future()
        self.renew(request, request.terms.ttl, partial(resolve, answer))
        return Granted(max(part.fence for part in request.parts), sent_at) if await answer else None

    def undo(self, request: Request, tell: ResultCallback) -> None:
        if request.parts and all(part.fence for part in request.parts):
            # Whether enough of them were live is reported as soon as that is certain.
            count = counting(len(request.parts), self.needed(request), tell, patient=True)
            self._end_all(request, lambda _, ended: count(ended))
        else:
            self._undo(request, tell)

    def _undo(self, request: Request, on_result: ResultCallback) -> None:
        """Undo the parts of a request that was not granted. *on_result* is called when enough of them are undone.

        These include each part that is known to have been granted. So the next caller can get a majority without the
        servers that do not answer. A part that is given up counts as undone.
        """
        missing = self.needed(request)
        granted = {id(part) for part in request.parts if part.request.valid_from is not None}
        reported = False

        def on_ended(part: Part, _: bool | Exception) -> None:
            nonlocal missing, reported
            missing -= 1
            granted.discard(id(part))
            if missing <= 0 and not granted and not reported:
                reported = True
                on_result(True)

        if not request.parts:
            on_result(False)
        self._end_all(request, on_ended)

    def _end_all(self, request: Request, on_ended: Callable[[Part, bool | Exception], None]) -> None:
        parts: Sequence[Part] = request.parts
        for part in parts:
            if part.ended is None:  # defect: P7-parts
                end(part, partial(on_ended, part)).on_refused = partial(self._part_refused, request)
            else:
                on_ended(part, part.ended)

    def forget(self, request: Request) -> None:
        self.context.forget(request)
        for part in request.parts:
            part.grantor.forget(part.request)

    def obstacle(self, request: Request) -> BaseException | None:
        under_way = (part.grantor.context.undos.under_way.get(part.request.token) for part in request.parts)
        known: list[Release] = [release for release in under_way if release is not None]
        refused = [release for release in known if release.refused]
        if len(refused) > len(request.parts) - self.needed(request):
            return refused[0].obstacle()
        troubles = (release.obstacle() for release in known if release not in refused)
        return next((trouble for trouble in troubles if trouble is not None), None)

    def _part_refused(self, request: Request) -> None:
        """Wake the caller that waits for the undo of *request*, if too many servers have refused to end a part."""
        whole = self.context.undos.under_way.get(request.token)
        if whole is not None and whole.refused:
            whole.wake()

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        return {part.grantor.name: part.fence for part in request.parts}


def all_granted(request: Request, granted: Sequence[Granted]) -> Granted:
    """Note the fencing token of each part, and return the grant of the whole."""
    for part, answer in zip(request.parts, granted, strict=True):
        part.granted(answer.fence)
    # P1: the lease counts from the oldest of its parts
    return Granted(max(answer.fence for answer in granted), min(answer.valid_from for answer in granted))


def end(part: Part, on_result: ResultCallback = lambda ended: None) -> Release:
    """End one part, in the background. If its undo has begun already, *on_result* gets the result of that."""

    def done(release: Release) -> None:
        if isinstance(release.trouble, Exception):
            on_result(release.trouble)
        else:
            # P10: None means that an earlier attempt, whose answer was lost, must have ended it.
            part.ended = release.ended is not False
            on_result(part.ended)

    context = part.grantor.context
    release = context.undos.under_way.get(part.request.token)
    if release is not None:  # W14: the context knows one undo of a token; a second would outlive the session
        release.add_callback(done)
    else:
        release = context.undos.begin(part.grantor, part.request, context.clock() + part.request.undo_for, done)
    return release


def parts_of(grantor: Grantor, request: Request) -> "list[tuple[RedisGrantor, Request]]":
    """Return the parts of a lease; a lease without parts is the only one."""
    if isinstance(grantor, Composite):
        return [(part.grantor, part.request) for part in request.parts]
    return [(cast("RedisGrantor", grantor), request)]
