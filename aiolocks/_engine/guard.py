"""Runs the holder's own commands on the server: together, once, and only while the lease is the current one.

One script checks all keys of the lease and then runs the commands. W10: the runs of a lease are numbered and never
overlap, so the server can recognise a duplicate or late request by remembering only the last number.
"""

from collections.abc import Callable, Sequence

import hiredis
from redis._parsers.base import BaseParser  # names no other place for it
from redis.exceptions import ClusterCrossSlotError, RedisError

from .._core.answers import REPLY_TIMEOUT, ask_until
from .._core.doing import Doing
from .._core.guard_commands import Batch, Command, Encoder, Reply, batch
from .._core.keys import slot_of, tag_of
from .._core.replies import UNREADABLE, RawReply, unreadable
from .._core.untyped import untyped
from .._redis.clients import encoder_of
from .._redis.pipeline import PendingCall
from .._redis.scripts import Arguments, PreparedScript, load
from .context import Guarding
from .lease_state import LeaseState
from .request import LONGEST_RETRY, Request, reason_in, says_revoked

_REVOKED = -2
"""In place of the replies."""


async def guard(state: LeaseState, commands: Sequence[Command]) -> list[Reply]:
    """See `Lease.guard`."""
    context, grantor = state.context, state.grantor
    # Returns the keys and tokens of a granted request, if all are on one server.
    guarding: Callable[[Request], Guarding] | None = getattr(grantor, "guarding", None)
    if guarding is None:
        raise TypeError(
            f"{state.what}: no one server knows whether its lease is the current one, and so none "
            "can guard by it; let what is written to compare `lease.fencing_token`, or guard by a Lock on that server"
        )
    encoder = encoder_of(context.pool)
    asked = batch(commands, encoder)
    runs = state.runs
    with context.in_use():
        async with runs.turn:
            state.check()
            runs.count += 1
            held = guarding(state.request)
            try:
                reply = await _run(state, held, asked, runs.count)
            except ClusterCrossSlotError:
                raise _across_slots(state.what, held) from None
    revoked = says_revoked(reply, _REVOKED)
    if not isinstance(reply, bytes) or revoked:
        if revoked:
            state.request.was_revoked(reason_in(reply))
        state.lose(state.refused_as)
        raise state.error(state.refused_as if state.validity.lost else "it was released before")
    return _read(reply, encoder, asked)


def _across_slots(what: str, held: Guarding) -> ClusterCrossSlotError:
    """Return the error for a Cluster's refusal to run a script over keys of several slots."""
    tag = f"{{{tag_of(held.holders[0]).decode()}}}"
    why = f"its lease guards keys in its own slot alone; let each key begin with {tag}"
    if len({slot_of(key) for key in held.holders}) > 1:
        why = "its names are in different slots, so no server can guard by all of them; guard by a lock of one name"
    return ClusterCrossSlotError(f"{what}: on a Cluster {why}. Nothing was written")


async def _run(state: LeaseState, held: Guarding, asked: Batch, number: int) -> object:
    """Ask until the server has replied, while the lease lasts."""
    context, route = state.context, state.context.pipeline.route(held.record)
    until = context.clock() + REPLY_TIMEOUT
    script = PreparedScript(load(held.script), (held.record, *held.holders, *asked.keys))
    keep_ms = round(1000 * max(state.ttl, LONGEST_RETRY))
    args: Arguments = (number, keep_ms, len(held.tokens), *held.tokens, *asked.words)

    async def ask(failures: int) -> object:
        patience, unsent = route.pipeline.patience_after(failures), until - context.clock()
        return await route.ask(script, args, patience, on_reply=_check, unsent=unsent)

    with Doing(f"guarding by {state.what}"):
        return await ask_until(ask, context.clock, min(state.validity.deadline, until), span=state.ttl)


def _check(call: PendingCall, reply: object) -> None:
    if type(reply) is int:
        if not _REVOKED <= reply <= 0:
            raise ValueError
    elif not (isinstance(reply, bytes) and reply[:1] in (b"*", b"R")):
        raise TypeError


_parse_error: Callable[[str], Exception] = untyped(BaseParser).parse_error


def _read(reply: bytes, encoder: Encoder, asked: Batch) -> list[Reply]:
    """Return the replies as the client's own commands would, or raise the error at their end."""
    encoding = encoder.encoding if encoder.decode_responses else None
    reader = hiredis.Reader(replyError=_parse_error, encoding=encoding, errors=encoder.encoding_errors)
    reader.feed(reply)
    try:
        answers: list[RawReply] = reader.gets()
        error = answers[-1]
        if len(answers) > len(asked.names) or (len(answers) < len(asked.names) and not isinstance(error, RedisError)):
            raise ValueError
    except (hiredis.ProtocolError, *UNREADABLE):
        raise unreadable("lease.guard", reply) from None
    if isinstance(error, RedisError):
        at = len(answers)
        earlier = "" if at == 1 else "; what came before it stays"
        # equivalent: 2 (second), there is one argument
        error.args = (f"command {at} of {len(asked.names)} ({asked.names[at - 1]}): {error}{earlier}", *error.args[1:])
        raise error
    return answers
