"""What a Grantor made of Grantors does with all parts of a request at once, and how their answers become one.

Each part is undone by itself, for as long as that makes sense: one that cannot be reached keeps no other waiting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

from .._engine.context import Context, Grantor
from .._engine.release import Release
from .._engine.request import Granted, Request, ResultCallback
from .._redis.endpoints import Pipelines
from .votes import VoteCount


@final
@dataclass(slots=True, eq=False)
class Part:
    """One of several requests that are one lease together, and whom it is for."""

    grantor: Grantor
    request: Request
    fence: int = 0
    """The fencing token that it was granted with, or 0."""
    ended: bool | None = None
    """What the server answered when it was undone."""


class Composite:
    """What every Grantor made of Grantors does; its requests' `parts` are `Part`s."""

    context: Context
    together = None

    def forget(self, request: Request) -> None:
        self.context.forget(request)
        for part in request.parts:
            part.grantor.forget(part.request)

    def needed(self, request: Request) -> int:
        """Return how many parts must end before *request* counts as ended: all of them, or a majority."""
        return len(request.parts)

    def obstacle(self, request: Request) -> BaseException | None:
        under_way = (part.grantor.context.undos.under_way.get(part.request.token) for part in request.parts)
        known: list[Release] = [release for release in under_way if release is not None]
        refused = [release for release in known if release.refused]
        if len(refused) > len(request.parts) - self.needed(request):
            return refused[0].obstacle()
        troubles = (release.obstacle() for release in known if release not in refused)
        return next((trouble for trouble in troubles if trouble is not None), None)

    def part_refused(self, request: Request) -> None:
        """Note that a server refused to end a part. If *request* cannot be undone any more, wake the waiting caller."""
        whole = self.context.undos.under_way.get(request.token)
        if whole is not None and whole.refused:
            whole.wake()

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        return {part.grantor.name: part.fence for part in request.parts}


def all_granted(request: Request, granted: Sequence[Granted]) -> Granted:
    """Note the fencing token of each part, and return the grant of the whole."""
    for part, answer in zip(request.parts, granted, strict=True):
        part.fence = answer.fence
    return Granted(max(answer.fence for answer in granted), min(answer.valid_from for answer in granted))


def renew_parts(whole: Request, needed: int, ttl: float, tell: ResultCallback, thread: Pipelines | None) -> None:
    """Renew all; *tell* gets whether *needed* of them were."""
    parts: Sequence[Part] = whole.parts

    def decided(renewed: bool | Exception) -> None:
        if renewed is False and any(part.request.revoked for part in parts):
            whole.was_revoked()
        tell(renewed)

    tally = VoteCount(len(parts), needed, decided)
    for part in parts:
        part.grantor.renew(part.request, ttl, tally.note, thread)


def release_parts(
    whole: Request, needed: int, tell: ResultCallback, on_refused: Callable[[], None] | None = None
) -> None:
    """End all parts; *tell* gets whether *needed* of them were live, as soon as that is certain.

    *on_refused* is called each time that a server refuses to end a part.
    """
    parts: Sequence[Part] = whole.parts
    for part in parts:
        part.request.keep_for(whole.min_hold_ms)
    tally = VoteCount(len(parts), needed, tell, patient=True)
    for part in parts:
        if part.ended is None:  # defect: P7-parts
            end(part, tally.note, on_refused)
        else:
            tally.note(part.ended)


def undo_parts(
    parts: Sequence[Part], tell: ResultCallback, enough: int | None = None, on_refused: Callable[[], None] | None = None
) -> None:
    """Undo the parts of a request that was not granted; *tell* is called when all are undone, or have been given up.

    With *enough*, it is called when so many are undone, among them all parts that are known to have been granted. The
    next caller can then get a majority without servers that do not answer. *on_refused* is as for `release_parts`.
    """
    missing = len(parts) if enough is None else enough
    granted = {id(part) for part in parts if part.request.valid_from is not None}
    told = False

    def done(part: Part, _: bool | Exception) -> None:
        nonlocal missing, told
        missing -= 1
        granted.discard(id(part))
        if missing <= 0 and not granted and not told:
            told = True
            tell(True)

    if not parts:
        tell(False)
    for part in parts:
        if part.ended is None:
            end(part, partial(done, part), on_refused)
        else:
            done(part, part.ended)


def end(part: Part, tell: ResultCallback = lambda ended: None, on_refused: Callable[[], None] | None = None) -> Release:
    """End one part, in the background; if that is under way already, *tell* hears of it too."""

    def done(release: Release) -> None:
        if isinstance(release.trouble, Exception):
            tell(release.trouble)
        else:
            # None: nothing there after an attempt whose answer was lost, which must have ended it.
            part.ended = release.ended is not False
            tell(part.ended)

    context = part.grantor.context
    release = context.undos.under_way.get(part.request.token)
    if release is not None:  # the context would know only one of two releases, and the other would outlive it
        release.add_callback(done)
    else:
        release = context.undo(part.grantor, part.request, context.clock() + part.request.undo_for, done)
    if on_refused is not None:
        release.on_refused = on_refused
    return release
