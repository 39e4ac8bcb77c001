"""Commands of the holder's own, run on the server together, once, and only while the lease is the current one.

One script, on one server, looks at all that the lease holds and then runs them. The one rule: runs of a lease are
numbered and never overlap, so that the server needs to remember but the last one to know a request that was sent twice,
or that comes too late.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast, final, runtime_checkable

import hiredis
from redis._parsers.base import BaseParser  # names no other place for it
from redis.crc import key_slot
from redis.exceptions import ClusterCrossSlotError, ReadOnlyError, RedisError

from ._batch import Batch, Command, Encoder, Reply, batch
from ._bound import Arguments, Bound
from ._commands import LONGEST_WAIT, UNCERTAIN, Call
from ._deadlines import retry_delay
from ._lease_state import TAKEN, LeaseState
from ._request import LONGEST_RETRY, Holding, Request, resolve
from ._scripts import load

TROUBLE = (*UNCERTAIN, ReadOnlyError)
"""What leaves open whether the commands were run, or says that another server must be asked."""


@final
class Runs:
    """Those of one token: how many there were, and whose turn it is."""

    __slots__ = ("count", "turn")

    def __init__(self) -> None:
        self.count = 0
        self.turn = asyncio.Lock()


@runtime_checkable
class Guarding(Protocol):
    """A grantor whose leases can guard: all that they hold is on one server."""

    def guarding(self, request: Request) -> Holding:
        """Return what a granted request holds there."""
        ...


async def guard(state: LeaseState, commands: Sequence[Command]) -> list[Reply]:
    """See `Lease.guard`."""
    session, grantor, request = state.session, state.grantor, state.request
    if not isinstance(grantor, Guarding):
        raise TypeError(
            f"{grantor.kind} {grantor.name!r}: no one server knows whether its lease is the current one, and so none "
            "can guard by it; let what is written to compare `lease.fencing_token`, or guard by a Lock on that server"
        )
    encoder: Encoder = session.pool.get_encoder()
    asked = batch(commands, encoder)
    if request.runs is None:
        request.runs = Runs()
    with session.question():
        async with request.runs.turn:
            state.check()
            request.runs.count += 1
            held = grantor.guarding(request)
            try:
                reply = await _run(state, held, asked, request.runs.count)
            except ClusterCrossSlotError:
                raise _across_slots(f"{grantor.kind} {grantor.name!r}", held) from None
    if not isinstance(reply, bytes):
        state.lose(TAKEN)
        raise state.error(TAKEN if state.lost else "it was released before")
    return _read(reply, encoder, asked)


def _across_slots(what: str, held: Holding) -> ClusterCrossSlotError:
    """Return what to raise when a Cluster refuses: it runs nothing over keys of several slots."""
    if len({key_slot(key) for key in held.holders}) > 1:
        return ClusterCrossSlotError(
            f"{what}: on a Cluster its names are in different slots, so that no server can guard by all of them; "
            "guard by a lock of one name. Nothing was written"
        )
    holder = held.holders[0].decode()
    tag = holder[holder.index("{") : holder.index("}") + 1]
    return ClusterCrossSlotError(
        f"{what}: on a Cluster its lease guards keys in its own slot alone; let each key begin with {tag}. "
        "Nothing was written"
    )


async def _run(state: LeaseState, held: Holding, asked: Batch, number: int) -> object:
    """Ask until the server has answered, while the lease lasts."""
    session, request = state.session, state.request
    until = min(state.deadline, session.clock() + LONGEST_WAIT)
    failures = 0
    bound = Bound(load(held.script), lambda _: (held.record, *held.holders, *asked.keys), per_token=False)
    keep_ms = round(1000 * max(request.ttl, LONGEST_RETRY))
    args: Arguments = (number, keep_ms, len(held.tokens), *held.tokens, *asked.words)
    while True:
        answer: asyncio.Future[object] = session.loop.create_future()
        patience = session.commands.patience_after(failures)
        call = session.commands.submit(bound, args, partial(_answered, answer), patience)
        try:
            return await answer
        except TROUBLE:
            failures += 1
            pause = retry_delay(request.ttl, failures)
            if session.clock() + pause >= until:
                raise
        except asyncio.CancelledError:
            call.drop()  # if it has not left yet, it never will
            raise
        await asyncio.sleep(pause)


def _answered(answer: "asyncio.Future[object]", _: Call, reply: object) -> None:
    resolve(answer, reply)


_parse_error = cast("Callable[[str], Exception]", cast("Any", BaseParser).parse_error)


def _read(reply: bytes, encoder: Encoder, asked: Batch) -> list[Reply]:
    """Return the answers, as the client's own commands would give them, or raise the error at their end."""
    encoding = encoder.encoding if encoder.decode_responses else None
    reader = hiredis.Reader(replyError=_parse_error, encoding=encoding, errors=encoder.encoding_errors)
    reader.feed(reply)
    answers: list[Any] = reader.gets()
    error = answers[-1]
    if isinstance(error, RedisError):
        at = len(answers)
        earlier = "" if at == 1 else "; what came before it stays"
        error.args = (f"command {at} of {len(asked.names)} ({asked.names[at - 1]}): {error}{earlier}", *error.args[1:])
        raise error
    return answers
