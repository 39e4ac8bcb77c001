"""Adopting a lease that another process has handed off: once, and with a fencing token of its own; see `handing_on`.

W17: only what stands under the secret is adopted, and nothing is ever created. Asked again by its own token, the server
gives the same reply. A lease that is given up is released, and a request of it that arrives late finds a tombstone.
"""

from collections.abc import Callable, Sequence
from typing import cast, final

from .._core.errors import LeaseLostError
from .._core.offers import Offer
from .._engine.acquire import Acquisition
from .._engine.extension import Extension
from .._engine.lease import Lease
from .._engine.request import Request
from .all_of import AllOf
from .one_server import RedisGrantor


async def adopt(acquisition: Acquisition, offer: Offer, *, by_hand: bool) -> Lease:
    """Acquire what is offered. Nothing of *acquisition* was asked so far.

    Raises:
        LeaseLostError: It is not offered any more.
        RedisError: Redis could not be asked.
    """
    own = acquisition.grantor

    def lost() -> LeaseLostError:
        reason = "the lease that was handed off has been adopted already, its time was over, or it was revoked"
        return LeaseLostError(f"{acquisition.what}: {reason}", name=own.name, fencing_token=0, reason=reason)

    grantors = cast("Sequence[RedisGrantor]", own.grantors if isinstance(own, AllOf) else (own,))
    first, *others = (Adoption(grantor, offer.secret_of(at), lost) for at, grantor in enumerate(grantors))
    first.others = others
    if isinstance(own, AllOf):
        own.adopt((first, *others))
    else:
        acquisition.request.extensions += (first,)
    return await acquisition.acquire(Lease, by_hand=by_hand)


@final
class Adoption(Extension):
    """Takes over what is offered under a secret, in place of a grant.

    Of several names the first is adopted before the others. So if two callers have the same text, one gets all names.
    """

    verb = "adopt"

    def __init__(self, grantor: RedisGrantor, secret: bytes, lost: Callable[[], LeaseLostError]) -> None:
        self._grantor = grantor
        self._secret = secret
        self._lost = lost
        self._refused = False
        self.others: Sequence[Adoption] = ()
        """The names behind this one, if it is the first of several."""

    def arguments(self, *, again: bool = False) -> tuple[bytes, ...]:
        return () if again else (self._secret,)

    def refusal(self, amount: int) -> LeaseLostError:
        self._refused = True
        return self._lost()

    def on_regrant(self) -> None:
        raise self._lost()  # it ran out, and others can have had the name in between

    def on_undone(self, request: Request, *, ended: bool) -> None:
        """Release the other names too, if this one was ours: without it no adopter can get them any more."""
        if not self._refused and (ended or request.silences):
            for other in self.others:
                other.release_offered(request)
            self.others = ()

    def release_offered(self, like: Request) -> None:
        """Release what is still offered, in the background."""
        offered = Request(like.ttl, like.permits, False, self._secret)
        offered.was_reached()
        context = self._grantor.context
        context.undo(self._grantor, offered, context.clock() + like.ttl)
