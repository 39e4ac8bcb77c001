"""Handing a lease on: one process offers it under a secret, which stands in place of its token, and another adopts it.

So nobody comes in between. The one rule: the secret stands there before the text with it leaves, and whoever takes it
from there puts a token of its own in its place, with a new fencing token. What is not confirmed is released.
"""

import asyncio
from functools import partial
from typing import Any, Protocol, cast

from .._core.answers import REPLY_TIMEOUT
from .._core.options import Duration, check_ttl
from .._core.tokens import fresh_token
from .._core.values import Offer
from .._engine.context import Holding
from .._engine.guard import Guarding
from .._engine.lease_state import LeaseState
from .._engine.release import GRACE, Release
from .._engine.request import LONGEST_RETRY, Request
from .._redis.scripts import Arguments
from .composite import Part

_REVOKED = -1


class OnOneServer(Protocol):
    """What is asked here of the grantor of one name."""

    def renewal_keys(self, count: int) -> tuple[bytes, ...]:
        """Return the *count* keys in which a lease is; the first is that of the holder."""
        ...

    def guarding(self, request: Request) -> Holding:
        """Return what a granted request holds."""
        ...

    async def ask_until(self, until: float, verb: str, args: Arguments, *, keys: tuple[bytes, ...]) -> Any:
        """Run a script, and ask until it is answered."""


async def hand_off(state: LeaseState, ttl: Duration | None) -> str:
    """See `Lease.hand_off`."""
    seconds = round(check_ttl(state.request.ttl if ttl is None else ttl) * 1000) / 1000
    _refuse(state)
    state.check()
    async with state.runs.turn:  # behind its own guard, which must not find the lease gone
        _refuse(state)
        state.check()
        context, request = state.context, state.request
        held = _parts(state)
        bases = tuple(_base(part.grantor) for part in held)
        offer = Offer(state.grantor.kind, bases, request.permits, fresh_token(context.id), seconds)
        now = context.clock()
        until = min(state.deadline, now + REPLY_TIMEOUT)
        state.hand_off(now)
        asked = [
            asyncio.ensure_future(_offer(part, offer.secret_of(at), round(seconds * 1000), until))
            for at, part in enumerate(held)
        ]
        try:
            answers = await asyncio.gather(*asked)
        except BaseException as error:
            state.emit_handed_off(now, "released")  # whatever comes of it, the holder has let go
            for one in asked:
                one.cancel()
            await _withdraw(state, held, offer, error)
            raise
        if min(answers) != 1:
            if _REVOKED in answers:
                request.was_revoked()
            state.emit_handed_off(now, "revoked" if request.revoked else "lost")
            lost = state.error(state.refused_as)
            await _withdraw(state, held, offer, lost)
            raise lost
        state.emit_handed_off(now, "released")
    state.grantor.forget(request)
    return offer.text()


def _refuse(state: LeaseState) -> None:
    """Raise unless the lease is of a kind, and in a state, that can be handed on."""
    token = state.request.token
    if not isinstance(state.grantor, Guarding):
        raise TypeError(f"{state.what}: its lease is on several servers, and cannot be handed on; that of a Lock can")
    if b"+" in token:
        raise RuntimeError(f"{state.what}: an upgrade ends with its block, and cannot be handed on")
    if state.changes is not None and state.changes.upgrading(state):
        raise RuntimeError(f"{state.what}: this lease is being upgraded; leave that block before it is handed on")
    if state.shares > 1:
        raise RuntimeError(
            f"{state.what}: its task holds it {state.shares} times; release all but one before it is handed on"
        )


def _parts(state: LeaseState) -> list[Part]:
    return list(state.request.parts) or [Part(state.grantor, state.request, state.fence)]


def _base(grantor: object) -> bytes:
    return cast("OnOneServer", grantor).renewal_keys(1)[0]


async def _offer(part: Part, secret: bytes, ttl_ms: int, until: float) -> int:
    """Ask until the secret stands in place of the token; return what the script does."""
    grantor, request = cast("OnOneServer", part.grantor), part.request
    tombstone_ms = round(1000 * max(request.ttl, LONGEST_RETRY)) if request.unanswered else 0
    held = grantor.guarding(request).holders
    keys = (*held, held[0] + b":t:" + request.token)
    answer: int = await grantor.ask_until(until, "hand_off", (request.token, secret, ttl_ms, tombstone_ms), keys=keys)
    return answer


async def _withdraw(state: LeaseState, held: list[Part], offer: Offer, error: BaseException) -> None:
    """Release the lease under both tokens: first the old one, without which the secret can come there no more."""
    context = state.context
    until = context.clock() + max(state.request.ttl, offer.ttl)
    releases: list[Release] = []

    def release_offered(part: Part, secret: bytes, _: Release) -> None:
        offered = Request(max(state.request.ttl, offer.ttl), part.request.permits, False, secret)
        offered.was_reached()
        releases.append(context.undo(part.grantor, offered, until))

    context.forget(state.request)
    for at, part in enumerate(held):
        part.request.keep_for(state.options.min_hold_ms)
        then = partial(release_offered, part, offer.secret_of(at))
        releases.append(context.undo(part.grantor, part.request, until, then))
    if not isinstance(error, GeneratorExit):  # a coroutine that is being destroyed must not wait
        settled_by = context.clock() + min(GRACE, state.request.ttl)
        for release in releases:  # which grows meanwhile
            await release.settle(settled_by)
