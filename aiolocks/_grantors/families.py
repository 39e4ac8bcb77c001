"""The scripts of each kind of holder, for all names that a session asks about, and renewals of many leases at once."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, final

from redis.exceptions import ResponseError

from .._core.keys import holder_of
from .._core.modes import EXCLUSIVE
from .._core.replies import check_numbers
from .._engine.request import Request, ResultCallback
from .._redis.endpoints import Pipelines
from .._redis.pipeline import PendingCall
from .._redis.router import Route
from .._redis.scripts import Arguments, Command, PlainCommand, PreparedScript, TokenScript, load

_GET, _ZSCORE = PlainCommand("GET"), PlainCommand("ZSCORE")


@final
class Family:
    """The scripts of one family, for all names that a session asks about."""

    def __init__(self, name: str, together: "dict[str, Together]") -> None:
        """*together* are what renews leases together in this session, by what their holders are kept in."""
        self.name = name
        self.holders = holders = "lock" if name in {"lock", "exact"} else "semaphore"  # that one's are a sorted set
        self.holder_of = holder_of if name == "exact" else _itself
        """Returns the key of the holder, by what the keys beside it begin with."""
        self.together = together.get(holders) or together.setdefault(holders, Together(holders))
        self.brief = name in {"lock", "semaphore"}  # whose scripts have a short answer
        script = load(f"{name}/grant")
        self.beside = b":" + script.keys[1].encode()
        """What stands behind the name in the key of what is known beside its holders."""
        own = name == "exact"
        self.grant = TokenScript(script, self._to_grant, each_its_own=own)
        self.release = TokenScript(load(f"{name}/release"), self._to_release, each_its_own=own)
        renewed = load(f"{name}/renew")
        self.renew = TokenScript(renewed, lambda base, _: self.common(base)[: len(renewed.keys)], each_its_own=own)

    def common(self, base: bytes) -> tuple[bytes, ...]:
        """Return the keys that every script begins with."""
        return self.holder_of(base), base + self.beside, base + b":queue"

    def reading(self, base: bytes, request: Request) -> "tuple[Command, Arguments] | None":
        """Return what reads the holder; None of a lease beside which others come and go."""
        if self.holders == "lock":
            return _GET, (self.holder_of(base),)
        return (_ZSCORE, (base, request.token)) if request.permits == EXCLUSIVE else None

    def _to_grant(self, base: bytes, args: Arguments) -> tuple[bytes, ...]:
        token = cast("bytes", args[0])
        return (*self.common(base), waiters_of(base, args[4]), base + b":t:" + token, base + b":ticket")

    def _to_release(self, base: bytes, args: Arguments) -> tuple[bytes, ...]:
        keys = (*self.common(base), waiters_of(base, args[3]))
        return (*keys, base + b":t:" + cast("bytes", args[0])) if args[2] else keys


def _itself(base: bytes) -> bytes:
    return base


def waiters_of(base: bytes, session: bytes | int) -> bytes:
    """Return the key of the line of *session*: the one that the arguments name, also when they are sent again."""
    return base + b":q:" + cast("bytes", session)


class Renewable(Protocol):
    """What is asked here of the grantor of a lease."""

    def pipeline(self, thread: Pipelines | None) -> Route:
        """Return what sends to the server of the name."""
        ...

    def renewal_keys(self, count: int) -> tuple[bytes, ...]:
        """Return the keys in which the lease is."""
        ...


@final
class Together:
    """Renews leases on one Redis together: of one session, and of one kind of holder."""

    def __init__(self, holder: str) -> None:
        self._script = load(f"{holder}/renew_many")
        self._keys_each = len(load(f"{holder}/renew").keys)
        self.most = 100 // self._keys_each  # which takes the server a third of a millisecond

    def renew(
        self, leases: Sequence[tuple[Renewable, Request]], tell: Callable[[Sequence[int] | Exception], None],
        thread: Pipelines | None = None,
    ) -> None:  # fmt: skip
        pipeline = leases[0][0].pipeline(thread)
        keys, args, shortest = list[bytes](), list[bytes | int](), leases[0][1].ttl
        for grantor, request in leases:
            keys += grantor.renewal_keys(self._keys_each)
            args += (request.token, request.ttl_ms)
            shortest = min(shortest, request.ttl)
        bound = PreparedScript(self._script, lambda _: tuple(keys))
        pipeline.submit(bound, tuple(args), _renewed_together, renewal_patience(pipeline, shortest), tell)


def renewal_patience(pipeline: Route, ttl: float) -> float:
    """Return how long the answer to a renewal may take.

    Bounded, as a measurement includes what the loop was late: a dead link must be given up before the deadline.
    """
    return max(0.25, min(1.0, ttl / 4), min(4 * pipeline.round_trip, ttl / 3))


def _renewed_together(call: PendingCall, reply: Any) -> None:
    if not isinstance(reply, Exception):
        check_numbers(*reply)
        if 2 * len(reply) != len(cast("Arguments", call.args)):
            raise ValueError
    call.subject(reply)


_REVOKED = -1
"""In place of 1 for a lease that was renewed."""


def renewed_alone(call: PendingCall, reply: Any) -> None:
    """Tell what became of one renewal."""
    request: Request
    tell: ResultCallback
    request, tell = call.subject, call.tell
    if reply == _REVOKED:
        request.was_revoked()
    if isinstance(reply, ResponseError) and "WRONGTYPE " in str(reply):
        reply = 0  # another's value has replaced the key: asking again would not bring the lease back
    if not isinstance(reply, Exception) and (type(reply) is not int or not _REVOKED <= reply <= 1):
        raise ValueError
    tell(reply if isinstance(reply, Exception) else reply == 1)
