"""What a Grantor made of Grantors does with all parts of a request at once, and how their answers become one.

Each part is undone by itself, for as long as that makes sense: one that cannot be reached keeps no other waiting.
"""

from collections.abc import Sequence
from functools import partial

from ._commands import Commands
from ._quorum import Tally
from ._request import Part, Tell
from ._withdrawal import Withdrawal


def renew_parts(parts: Sequence[Part], needed: int, ttl: float, tell: Tell, commands: Commands | None) -> None:
    """Renew all; *tell* gets whether *needed* of them were."""
    tally = Tally(len(parts), needed, tell)
    for part in parts:
        own = commands if commands is None else commands.of(part.grantor.session.pool)
        part.grantor.renew(part.request, ttl, tally.note, own)


def release_parts(parts: Sequence[Part], needed: int, tell: Tell) -> None:
    """End all; *tell* gets whether *needed* of them were live, as soon as that is certain."""
    tally = Tally(len(parts), needed, tell, patient=True)
    for part in parts:
        if part.ended is None:
            end(part, tally.note)
        else:
            tally.note(part.ended)


def undo_parts(parts: Sequence[Part], tell: Tell, enough: int | None = None) -> None:
    """Undo what was asked for in vain; *tell* hears of it when all are done, or have been given up.

    Or when *enough* of them are, and those among them that are known to have been granted: then whoever comes next can
    have a majority, and need not wait for servers that do not answer.
    """
    missing = len(parts) if enough is None else enough
    granted = {id(part) for part in parts if part.request.counted_from is not None}
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
            end(part, partial(done, part))
        else:
            done(part, part.ended)


def end(part: Part, tell: Tell = lambda ended: None) -> Withdrawal:
    """End one part, in the background; if that is under way already, *tell* hears of it too."""

    def done(withdrawal: Withdrawal) -> None:
        if isinstance(withdrawal.trouble, Exception):
            tell(withdrawal.trouble)
        else:
            # None: nothing there after an attempt whose answer was lost, which must have ended it.
            part.ended = withdrawal.ended is not False
            tell(part.ended)

    session = part.grantor.session
    under_way = session.withdrawing.get(part.request.token)
    if under_way is not None:  # of two, the session would know but one, and the other would outlive it
        under_way.tell_too(done)
        return under_way
    return session.withdraw(part.grantor, part.request, session.clock() + part.request.undo_for, done)
