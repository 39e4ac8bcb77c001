"""Adopting a lease that another process has handed off: once, and with a fencing token of its own; see `handing_on`.

Only what stands under the secret is taken over, and nothing is ever created. Asked again by its own token, the server
answers the same; what is given up is released, and a request of it that comes late finds a tombstone.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast, final

from redis.exceptions import ResponseError

from .._core.answers import LONGEST_WAIT, was_not_run
from .._core.errors import LeaseLostError
from .._core.offers import Offer
from .._engine.acquire import Acquisition
from .._engine.context import Holding
from .._engine.lease import Lease
from .._engine.lease_state import LeaseState
from .._engine.request import Answer, Granted, Request, ResultCallback
from .._redis.endpoints import Pipelines
from .._redis.pipeline import PendingCall
from .._redis.scripts import Arguments, PreparedScript, load
from .all_of import AllOf
from .one_server import RedisGrantor


async def adopt(acquisition: Acquisition, offer: Offer, family: str, *, by_hand: bool) -> Lease:
    """Acquire what is offered. Nothing of *acquisition* was asked so far.

    Its scripts are those of *family*.

    Raises:
        LeaseLostError: It is not offered any more.
        RedisError: Redis could not be asked.
    """
    own, adoptions = acquisition.grantor, list[Adoption]()

    def lost() -> LeaseLostError:
        reason = "the lease that was handed off has been adopted already, its time was over, or it was revoked"
        return LeaseLostError(f"{acquisition.what}: {reason}", name=own.name, fencing_token=0, reason=reason)

    def adopting(grantor: object) -> Adoption:
        secret, first = offer.secret_of(len(adoptions)), adoptions[0] if adoptions else None
        adoptions.append(Adoption(cast("RedisGrantor", grantor), f"{family}/adopt", secret, lost, first))
        return adoptions[-1]

    def adopted(state: LeaseState) -> Lease:
        for part in state.request.parts:
            part.grantor = part.grantor.own
        state.asks(own)
        return Lease(state)

    if isinstance(own, AllOf):
        own.ask_instead(adopting)
        adoptions[0].others = adoptions[1:]
    else:
        acquisition.grantor = adopting(own)
    return await acquisition.acquire(adopted, must=True, by_hand=by_hand)


@final
class Adoption:
    """Grants one name by taking over what is offered there; of all else its *own* grantor is asked.

    Of several names the *first* is adopted before the others: of two who have the same text, one gets all of them.
    """

    together = None

    def __init__(
        self, own: RedisGrantor, script: str, secret: bytes, lost: Callable[[], LeaseLostError],
        first: "Adoption | None",
    ) -> None:  # fmt: skip
        self.own = own
        self.context = own.context
        self._secret = secret
        self._lost = lost
        self._first = first
        self._script = load(script)
        self._fence = 0
        self._refused = False
        self.others: Sequence[Adoption] = ()
        """Those that come behind this one, if it is the first of several."""
        self.answer: asyncio.Future[Answer] | None = None
        """To the newest attempt; of several names, the first is always asked first."""

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def kind(self) -> str:
        return self.own.kind

    async def grant(self, request: Request) -> Answer:
        first = None if self._first is None else self._first.answer
        if first is not None:
            await asyncio.wait([first])
            first.result()
        return await self._ask(request)

    def _ask(self, request: Request) -> "asyncio.Future[Answer]":
        own, context = self.own, self.context
        request.server = own
        context.undos.go_ahead(self.kind, self.name)
        self.answer = answer = context.loop.create_future()
        route = own.route()
        keys = (*own.renewal_keys(2), own.renewal_keys(1)[0] + b":t:" + request.token)
        args: Arguments = (request.token, self._secret, request.ttl_ms)
        patience = route.patience_after(len(request.unanswered))
        bound = PreparedScript(self._script, lambda _: keys)
        request.sent(route.submit(bound, args, self._answered, patience, request, answer, LONGEST_WAIT))
        return answer

    def _answered(self, call: PendingCall, reply: Any) -> None:
        request: Request = call.subject
        answer: asyncio.Future[Answer] = call.tell
        if isinstance(reply, Exception):
            if call.link is None or was_not_run(reply):
                request.not_run(call)
            elif isinstance(reply, ResponseError):
                request.answered(call)
        elif type(reply) is not int:
            raise TypeError
        elif reply > 0:
            request.granted(call)
            self._fence = reply
        else:
            request.answered(call)
            self._refused = True
        if answer.done():
            return
        if isinstance(reply, int) and reply > 0:
            answer.set_result(Granted(reply, call.sent_at))
        else:
            answer.set_exception(reply if isinstance(reply, Exception) else self._lost())
            answer.exception()  # the caller may leave still

    async def replicate(self, request: Request, replicas: Any) -> Granted:
        granted = await self.own.replicate(request, replicas)
        if granted.fence != self._fence:  # it ran out, and was granted anew: others may have had it in between
            raise self._lost()
        return granted

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        self.own.renew(request, ttl, tell, thread)

    def undo(self, request: Request, tell: ResultCallback) -> None:
        self.own.undo(request, partial(self._undone, request, tell) if self.others else tell)

    def _undone(self, request: Request, tell: ResultCallback, ended: bool | Exception) -> None:
        """Release the others too, if this one was ours: without it no adopter can have them any more."""
        if not self._refused and (ended is True or (ended is False and request.silences)):
            for other in self.others:
                other.release_offered(request)
            self.others = ()
        tell(ended)

    def release_offered(self, like: Request) -> None:
        """Release what is still offered, in the background."""
        offered = Request(like.ttl, like.permits, False, self._secret)
        offered.was_reached()
        self.context.undo(self.own, offered, self.context.clock() + like.ttl)

    def forget(self, request: Request) -> None:
        self.own.forget(request)

    def obstacle(self, request: Request) -> None:
        return None  # it has no parts

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        return self.own.fencing_tokens(request, fence)

    def guarding(self, request: Request) -> Holding:
        return self.own.guarding(request)
