"""Handing a lease to another process (W17): it is offered under a secret, and one process adopts it.

No other caller can get the name in between. Invariant: the secret is on the server before the text is returned; the
adopter replaces it by its own token, and gets a new fencing token. An adoption never creates a lease, and its request
can be repeated. A hand-off or adoption that is not confirmed is released, and leaves a tombstone if a request of it may
arrive later. Until it is adopted, the offer can be touched and dropped (W27).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast, final

from .._core.answers import REPLY_TIMEOUT, resolve
from .._core.errors import LeaseLostError
from .._core.options import Duration, check_ttl
from .._core.tokens import fresh_token
from .._core.values import Offer
from .._engine.acquire import Acquisition
from .._engine.context import Grantor
from .._engine.extension import Extension
from .._engine.lease_state import LeaseState
from .._engine.release import GRACE, RELEASE_TIMEOUT, Release
from .._engine.request import LONGEST_RETRY, Request, reason_in, says_revoked
from .parts import Composite, parts_of

if TYPE_CHECKING:
    from .all_of import AllOf
    from .one_server import RedisGrantor

_REVOKED = -1

_ADOPTED = -1


async def hand_off(state: LeaseState, ttl: Duration | None) -> str:
    """Offer the lease, and return the text of the offer; see `Lease.hand_off`."""
    seconds = round(check_ttl(state.request.terms.ttl if ttl is None else ttl) * 1000) / 1000
    _check(state)
    async with state.runs.turn:  # behind its own guard, which must not find the lease gone
        _check(state)
        context, request = state.context, state.request
        held = parts_of(state.grantor, state.request)
        bases = tuple(grantor.lease_keys()[0] for grantor, _ in held)
        # W27: a fresh one, so no late `touch` or `drop` of an earlier text meets it.
        secret = fresh_token(context.id)  # defect: W27-secret
        offer = Offer(state.grantor.kind, bases, request.terms.permits, secret, seconds)
        now = context.clock()
        until = min(state.validity.deadline, now + REPLY_TIMEOUT)
        state.hand_off(now)
        asked = [asyncio.ensure_future(_offer(*part, offer, at, until)) for at, part in enumerate(held)]
        gone = False  # the holder has let go, even if no other process goes on
        try:
            answers = await asyncio.gather(*asked)
            if min(answers) != 1:
                if _REVOKED in answers:
                    request.was_revoked(max(part.why_revoked for _, part in held))
                gone = True
                raise state.error(state.refused_as)
        except BaseException as error:
            state.emit_end(now, gone=gone)
            for one in asked:
                one.cancel()
            await _withdraw(state, held, offer, error)
            raise
        state.emit_end(now)
    state.grantor.forget(request)
    return offer.text()


def _check(state: LeaseState) -> None:
    """Raise unless the lease is held, and can be handed on."""
    if not hasattr(state.grantor, "guarding"):  # see `guard`
        raise TypeError(f"{state.what}: its lease is on several servers, and cannot be handed on; that of a Lock can")
    if b"+" in state.request.token:
        raise RuntimeError(f"{state.what}: an upgrade ends with its block, and cannot be handed on")
    if state.changes is not None and state.changes.upgrading(state):
        raise RuntimeError(f"{state.what}: this lease is being upgraded; leave that block before it is handed on")
    if state.shares > 1:
        raise RuntimeError(f"{state.what}: held {state.shares} times; release all but one before it is handed on")
    state.check()


async def _offer(grantor: "RedisGrantor", request: Request, offer: Offer, at: int, until: float) -> int:
    """Ask until the secret has replaced the token. Return the reply of the script."""
    # W10: a request that is still unanswered may arrive later.
    tombstone_ms = round(1000 * max(request.terms.ttl, LONGEST_RETRY)) if request.unanswered else 0
    args = (request.token, offer.secret_of(at), round(offer.ttl * 1000), tombstone_ms)
    reply = await grantor.ask_until(until, "hand_off", args)
    if says_revoked(reply):
        request.was_revoked(reason_in(reply))
        return _REVOKED
    return int(reply)


async def _withdraw(
    state: LeaseState, held: "list[tuple[RedisGrantor, Request]]", offer: Offer, error: BaseException
) -> None:
    """Release the lease under both tokens: the old one first, so that the secret cannot replace it any more."""
    context = state.context
    ttl = max(state.request.terms.ttl, offer.ttl)
    until = context.clock() + ttl
    releases: list[Release] = []

    def release_offered(grantor: "RedisGrantor", secret: bytes, _: Release) -> None:
        releases.append(_release_offered(grantor, ttl, secret, until))

    context.forget(state.request)
    for at, (grantor, request) in enumerate(held):
        then = partial(release_offered, grantor, offer.secret_of(at))
        releases.append(context.undos.begin(grantor, request, until, then))
    if not isinstance(error, GeneratorExit):  # a coroutine that is being destroyed must not wait
        settled_by = context.clock() + min(GRACE, state.request.terms.ttl)
        for release in releases:  # the list grows in the meantime
            await release.settle(settled_by)


def _release_offered(grantor: Grantor, ttl: float, secret: bytes, until: float) -> Release:
    """Release the lease that is still offered under *secret*, in the background."""
    offered = Request(ttl, 1, False, secret)  # equivalent: constant, an offer never waits in the queue
    offered.was_reached()
    return grantor.context.undos.begin(grantor, offered, until)


async def touch(grantors: "Sequence[RedisGrantor]", offer: Offer, ttl: float) -> int | None:
    """Extend the lease that is offered, and return its fencing token; see `Acquirable.touch`."""
    with grantors[0].context.in_use():  # all are of one session
        asked = (_touch(grantor, offer.secret_of(at), ttl) for at, grantor in enumerate(grantors))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if 0 in answers and len(grantors) > 1:  # W27: one name is gone, so all are dropped # defect: W27-whole
            await drop(grantors, offer)
    if 0 in answers or _ADOPTED in answers:
        return None
    fences: list[int] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        fences.append(answer)
    return max(fences)


async def _touch(grantor: "RedisGrantor", secret: bytes, ttl: float) -> int:
    until = grantor.context.clock() + REPLY_TIMEOUT
    return int(await grantor.ask_until(until, "touch", (secret, round(ttl * 1000))))


async def drop(grantors: "Sequence[RedisGrantor]", offer: Offer) -> bool:
    """End the lease that is offered; see `Acquirable.drop`. As for adopters, the first name decides."""
    with grantors[0].context.in_use():  # also between two releases; all are of one session
        return await _drop(grantors, offer)


async def _drop(grantors: "Sequence[RedisGrantor]", offer: Offer) -> bool:
    first, *others = grantors
    secret = offer.secret_of(0)
    another = secret in first.context.undos.under_way
    release = _end(first, secret, offer)

    def end_others(release: Release) -> None:
        if release.trouble is None and release.ended is not False:
            for at, other in enumerate(others, 1):
                _end(other, offer.secret_of(at), offer)

    try:
        ended = await _outcome(release)
        if another:
            return False
        # P10: None means that an earlier try, whose reply was lost, may have ended it.
        unsure = ended is None or (not ended and len(others) > 0)
        if unsure and await _touch(first, secret, 0) == _ADOPTED:  # defect: W27-adopted
            return False
    except BaseException:  # it goes on in the background
        release.add_callback(end_others)
        raise
    for rest in [_end(other, offer.secret_of(at), offer) for at, other in enumerate(others, 1)]:
        await _outcome(rest)
    return ended is not False  # defect: W27-lost


def _end(grantor: "RedisGrantor", secret: bytes, offer: Offer) -> Release:
    """Release a name that is offered under *secret*, unless that has begun already (W14)."""
    context = grantor.context
    # It may last longer than the text says, because it was touched.
    ttl = max(offer.ttl, RELEASE_TIMEOUT)
    return context.undos.under_way.get(secret) or _release_offered(grantor, ttl, secret, context.clock() + ttl)


async def _outcome(release: Release) -> bool | None:
    """Wait until it is done or refused, and return `Release.ended`, or raise why it is not confirmed."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    release.add_callback(lambda _: resolve(answer, None))
    release.on_refused = partial(resolve, answer, None)
    try:
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await answer
    except TimeoutError:
        pass
    return release.outcome()


def prepare_adoption(acquisition: Acquisition, offer: Offer) -> None:
    """Make *acquisition* adopt the offered lease. It raises LeaseLostError if the lease is not offered any more."""
    own = acquisition.grantor
    lost = partial(_not_offered, acquisition.what, own.name)
    several = cast("AllOf", own) if isinstance(own, Composite) else None
    grantors = several.grantors if several else (own,)
    first, *others = (Adoption(grantor, offer.secret_of(at), lost) for at, grantor in enumerate(grantors))
    first.others = others
    if several:
        several.adopt((first, *others))
    else:
        acquisition.request.carry((*acquisition.request.extensions, first))


def _not_offered(what: str, name: str) -> LeaseLostError:
    reason = "the lease that was handed off has been adopted already, its time was over, or it was revoked"
    return LeaseLostError(f"{what}: {reason}", name=name, fencing_token=0, reason=reason)


@final
class Adoption(Extension):
    """Takes over the lease that is offered under a secret, in place of a grant.

    Of several names the first is adopted before the others. So if two callers have the same text, one gets all names.
    """

    verb = "adopt"

    def __init__(self, grantor: Grantor, secret: bytes, lost: Callable[[], LeaseLostError]) -> None:
        self._grantor = grantor
        self._secret = secret
        self._lost = lost
        self._refused = False
        self.others: Sequence[Adoption] = ()
        """The adoptions of the other names, if this is the first of several."""

    def arguments(self, *, again: bool = False) -> tuple[bytes, ...]:
        return () if again else (self._secret,)

    def refusal(self, amount: int) -> LeaseLostError:
        self._refused = True
        return self._lost()

    def held(self) -> None:
        return None

    def on_regrant(self) -> None:
        raise self._lost()  # the lease expired, and others can have had the name in between

    def on_undone(self, request: Request, *, ended: bool) -> None:
        """Release the other names too, if this name was ours: without it no adopter can get them any more."""
        if not self._refused and (ended or request.silences):
            for other in self.others:
                until = other._grantor.context.clock() + request.terms.ttl
                _release_offered(other._grantor, request.terms.ttl, other._secret, until)
            self.others = ()
