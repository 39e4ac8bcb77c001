"""The scripts of each family of kinds, for all names that a session asks about, and renewals of many leases at once."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from redis.exceptions import ResponseError

from .._core.keys import Keys
from .._core.modes import EXCLUSIVE
from .._core.replies import RawReply, check_numbers, is_list
from .._engine.request import Request, ResultCallback, reason_in, says_revoked
from .._redis.cluster import Route
from .._redis.endpoints import Pipelines
from .._redis.pipeline import PendingCall
from .._redis.scripts import Arguments, Command, NamedScript, PlainCommand, PreparedScript, load

if TYPE_CHECKING:
    from .one_server import RedisGrantor

_GET, _ZSCORE = PlainCommand("GET"), PlainCommand("ZSCORE")


@final
class ScriptSet:
    """The scripts of one family, for all names that a session asks about."""

    def __init__(self, name: str, batches: "dict[str, RenewalBatch]") -> None:
        """*batches* are those of the session, by the family whose `renew_many` they run."""
        self.name = name
        self.kept_as = "lock" if name in {"lock", "exact"} else "semaphore"
        family = name if name == "exact" else self.kept_as
        self.batch = batches.get(family) or batches.setdefault(family, RenewalBatch(family))
        self.short_reply = name in {"lock", "semaphore"}
        self.grant, self.release, self.renew = (load(f"{name}/{verb}") for verb in ("grant", "release", "renew"))

    def script(self, verb: str, keys: Keys) -> NamedScript:
        """Return the script of a *verb* for a name; "lock/…" is that of another family.

        Its keys are those that its header names.
        """
        return NamedScript(load(verb if "/" in verb else f"{self.name}/{verb}"), keys.base, keys.holder_key)

    def lease_keys(self, keys: Keys) -> tuple[bytes, ...]:
        """Return the keys in which a lease is."""
        return self.renew.keys_of(keys.base, keys.holder_key, ())

    def reading(self, keys: Keys, request: Request) -> tuple[Command, Arguments] | None:
        """Return the command that reads the holder, or None if other holders may change the key."""
        if self.kept_as == "lock":
            return _GET, (keys.holder_key,)
        return (_ZSCORE, (keys.base, request.token)) if request.terms.permits == EXCLUSIVE else None


@final
class RenewalBatch:
    """Renews many leases of one session by one script, that of *family*."""

    def __init__(self, family: str) -> None:
        self._script = load(f"{family}/renew_many")
        self.most = 100 // len(load(f"{family}/renew").keys)  # which takes the server a third of a millisecond

    def renew(
        self, leases: "Sequence[tuple[RedisGrantor, Request]]", tell: Callable[[Sequence[int] | Exception], None],
        thread: Pipelines | None = None,
    ) -> None:  # fmt: skip
        pipeline = leases[0][0].pipeline(thread)
        keys, args, shortest = list[bytes](), list[bytes | int](), leases[0][1].terms.ttl
        for grantor, request in leases:
            keys += grantor.lease_keys()
            args += (request.token, request.terms.ttl_ms)
            shortest = min(shortest, request.terms.ttl)
        script = PreparedScript(self._script, tuple(keys))
        pipeline.submit(script, tuple(args), _renewed_together, renewal_patience(pipeline, shortest), tell)


def renewal_patience(route: Route, ttl: float) -> float:
    """Return the timeout for the reply to a renewal.

    It is bounded, as a measured round trip includes delays of the loop: a dead link must be closed before the deadline.
    """
    return max(0.25, min(1.0, ttl / 4), min(4 * route.pipeline.round_trip, ttl / 3))


def _renewed_together(call: PendingCall, reply: RawReply) -> None:
    if not isinstance(reply, Exception):
        if not is_list(reply) or 2 * len(reply) != len(call.args):
            raise ValueError
        check_numbers(*reply)
    call.subject(reply)


_REVOKED = -1
"""In place of 1 for a lease that was renewed."""


def renewed_alone(call: PendingCall, reply: RawReply) -> None:
    """Report the result of one renewal."""
    request: Request
    tell: ResultCallback
    request, tell = call.subject, call.reply_to
    if says_revoked(reply):  # W16: it is renewed no more
        request.was_revoked(reason_in(reply))
        reply = _REVOKED
    if isinstance(reply, ResponseError) and "WRONGTYPE " in str(reply):
        reply = 0  # another program's value has replaced the key: retrying would not bring the lease back
    if not isinstance(reply, Exception) and (type(reply) is not int or not _REVOKED <= reply <= 1):
        raise ValueError
    tell(reply if isinstance(reply, Exception) else reply == 1)
