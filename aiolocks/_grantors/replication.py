"""Waits until enough replicas have a grant, before its holder acts. WAIT blocks a connection, so it has one of its own.

WAIT counts only the writes of its own connection, so each grant is written once more over that. One short WAIT serves
all grants that were written while the previous WAIT was on its way.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.answers import REPLY_TIMEOUT, NoPrimaryError, resolve, ride_out
from .._core.options import Options, Replicas
from .._core.replies import RawReply, check_reply
from .._engine.context import Grantor
from .._engine.extension import Extension
from .._engine.request import Answer, Granted, Request
from .._redis.clients import Pool, in_memory
from .._redis.connection import Endpoint
from .._redis.pipeline import PendingCall, Pipeline
from .._redis.scripts import PlainCommand
from .parts import all_granted, parts_of

if TYPE_CHECKING:
    from .all_of import AllOf
    from .one_server import RedisGrantor

LONGEST_REPLICATION = 1.0
"""Maximum number of seconds to wait for replicas; a quarter of the TTL, if that is less."""

_WAIT, _ROLE = PlainCommand("WAIT"), PlainCommand("ROLE")

_SLICE = 0.05
"""Maximum number of seconds for which one WAIT blocks its connection, as later grants wait behind it."""


class _Asked(NamedTuple):
    written: PendingCall
    replicas: int
    bound: float
    future: asyncio.Future[int]

    def until(self, now: float) -> float:
        """Return the local time until which replicas are waited for; the time to connect does not count."""
        return (now if self.written.link is None else self.written.sent_at) + self.bound


@final
class Replication:
    """The waits for the replicas of one server. It connects at the first of them."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.pipeline = Pipeline(endpoint, loop, clock, lambda: None)
        self._clock = clock
        self._asked: list[_Asked] = []
        self._on_its_way = False

    async def count(self, wanted: Literal["majority", "all"]) -> int:
        """Return how many of the connected replicas that is now."""
        role, _, replicas, *_ = await self.pipeline.ask(_ROLE, (), self.pipeline.patience)
        if role != b"master":
            raise NoPrimaryError(f"it takes {wanted} of a primary's replicas, and the server is none")
        return len(replicas) if wanted == "all" else (1 + len(replicas)) // 2

    def patience(self, bound: float) -> float:
        """Return the timeout for any reply, if replicas are waited for *bound* seconds."""
        return bound + _SLICE + self.pipeline.patience

    def acknowledged(self, written: PendingCall, replicas: int, bound: float) -> "asyncio.Future[int]":
        """Return the number of replicas that have *written*, once it is that many or *bound* seconds are over.

        A caller that no longer needs it cancels it.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(written, replicas, bound, future))
        if not self._on_its_way:  # defect: W13-together
            self._wait()
        return future

    def _wait(self) -> None:
        self._asked = [each for each in self._asked if not each.future.done()]
        if not self._asked:
            return
        asked = tuple(self._asked)  # the reply says nothing about later ones, which are written behind the WAIT
        self._on_its_way = True
        now = self._clock()
        # With the smallest number, each WAIT returns as soon as one of them has enough.
        least = min(each.replicas for each in asked)
        # equivalent: constant, it is rounded
        slice_ms = round(1000 * min(_SLICE, *(each.until(now) - now for each in asked)))  # defect: W13-slice
        patience = self.patience(max(each.bound for each in asked))
        self.pipeline.submit(_WAIT, (least, max(slice_ms, 1)), self._answered, patience, asked)  # 0 would be for ever

    def _answered(self, call: PendingCall, reply: RawReply) -> None:
        failed = isinstance(reply, Exception)  # then later ones get no reply over this connection either
        if not failed:
            check_reply(call.command.name, reply)
        self._on_its_way = False
        now = self._clock()
        for each in self._asked if failed else call.subject:
            if failed:
                resolve(each.future, reply)
            elif each.written.link is not call.link:
                # Over another connection, which has written nothing, Redis replies at once that all have it.
                resolve(each.future, RedisConnectionError("Connection lost while replicas were waited for"))
            elif reply >= each.replicas or now >= each.until(now):
                resolve(each.future, reply)
        self._wait()


@final
class ReplicasOption(Extension):
    """A grant counts only once the *wanted* number of replicas has it (W13)."""

    confirms = True

    def __init__(self, wanted: Replicas) -> None:
        self._wanted: Replicas = wanted

    def unconfirmed(self) -> str:
        return f"not known to be on {'most' if self._wanted == 'majority' else self._wanted} replicas"

    async def confirm(self, grantor: Grantor, request: Request) -> Granted:
        if not request.parts:
            return await parts_of(grantor, request)[0][0].replicate(request, self._wanted)
        asked = [asyncio.ensure_future(part.grantor.replicate(part.request, self._wanted)) for part in request.parts]
        before = [part.fence for part in request.parts]
        try:
            granted = all_granted(request, await asyncio.gather(*asked))
        finally:
            for one in asked:
                one.cancel()
        for part, fence in zip(request.parts, before, strict=True):
            if part.fence != fence:
                part.request.regranted()
        # One part can end while another is waited for.
        ran_out = granted.valid_from + request.terms.valid_for <= grantor.context.clock()
        # A part that ended on the server was granted again, with another fencing token than the others have.
        if ran_out or (cast("AllOf", grantor).seal and before != [part.fence for part in request.parts]):
            raise _ran_out(grantor)
        return granted


def replicas_of(options: Options, pool: Pool) -> tuple[ReplicasOption, ...]:
    """Return the extension that *options* ask for, if any. Raise ValueError if the server has no replicas."""
    if options.replicas and in_memory(pool):
        raise ValueError("replicas are a server's: memory:// has none")
    return (ReplicasOption(options.replicas),) if options.replicas else ()


async def replicated(grantor: "RedisGrantor", replication: Replication, request: Request, wanted: Replicas) -> Granted:
    """Write a lease again, so that WAIT counts it, and wait until enough replicas have it; see `Extension.confirm`."""
    clock = grantor.context.clock

    async def attempt() -> Granted | RedisTimeoutError:
        """Try once. An error that is returned is final. An error that is raised can be that of an outage."""
        replicas = wanted if isinstance(wanted, int) else await replication.count(wanted)
        bound = min(LONGEST_REPLICATION, request.terms.ttl / 4)
        call = grantor.submit_again(replication.pipeline, request, replication.patience(bound))
        answer: asyncio.Future[Answer] = call.reply_to
        acknowledged = replication.acknowledged(call, replicas, bound)
        try:
            granted, count = await answer, await acknowledged
        finally:
            acknowledged.cancel()
        if not isinstance(granted, Granted) or granted.valid_from + request.terms.valid_for <= clock():
            return _ran_out(grantor)
        if count < replicas:  # defect: W13-counted
            what = f"{grantor.kind} {grantor.name!r}"
            return RedisTimeoutError(f"{what}: {count} of {replicas} replicas had it within {bound:g} s")
        return granted

    until = clock() + min(REPLY_TIMEOUT, request.terms.valid_for)
    outcome = await ride_out(attempt, clock, until, outages=grantor.route.pipeline.endpoint.fails_over)
    if isinstance(outcome, Granted):
        return outcome
    raise outcome


def _ran_out(grantor: Grantor) -> RedisTimeoutError:
    return RedisTimeoutError(f"{grantor.kind} {grantor.name!r}: the lease ran out before replicas had it")
