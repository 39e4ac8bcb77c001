"""Leases that replicas must have before they are had, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks._core.options import Options
from aiolocks._engine.acquire import take
from aiolocks._engine.lease import Lease
from aiolocks._engine.lease_state import LeaseState
from aiolocks._engine.request import Request
from aiolocks._grantors.all_of import AllOf
from aiolocks._grantors.one_server import RedisGrantor
from aiolocks._grantors.session import Session
from tests.support.answering import Answering, Asked, Later

TTL = 1.0


@asynccontextmanager
async def replicated(wait: object) -> AsyncIterator[tuple[Answering, RedisGrantor]]:
    """Have a lock on a server that grants it, and then answers WAIT in that way."""

    def answer(asked: Asked) -> object:
        return {"lock_grant": 7, "lock_release": 1}.get(asked.what, wait)

    server = Answering(answer)
    grantor = server.grantor()
    try:
        yield server, grantor
    finally:
        await server.close()


@pytest.mark.parametrize("timeout", [None, 0.0, 5.0])
async def test_what_ran_out_while_replicas_were_waited_for_is_an_error_and_undone(timeout: float | None) -> None:
    async with replicated(Later(TTL, 1)) as (server, grantor):
        options, request = Options(TTL, timeout, replicas=1), Request(TTL, 1, wait=timeout != 0)
        asking = LeaseState(grantor.context, grantor, b"orders", request, options, timeout, None)
        with pytest.raises(RedisTimeoutError, match="ran out"):
            await take(asking, Lease, must=True)
        assert server.times("lock_release") == [TTL]
        assert not grantor.context.tokens


@pytest.mark.parametrize("lapsed", [False, True])
async def test_levels_with_one_fencing_token_are_not_granted_if_replicas_needed_a_new_grant(lapsed: bool) -> None:
    """It had run out on the server by then: who held it meanwhile may be ahead of what the other levels know."""
    asked_for: list[bytes] = []

    def answer(asked: Asked) -> object:
        if asked.what == "lock_grant":
            again, name = asked.words[3] in asked_for, asked.words[3]
            asked_for.append(name)
            return 7 if not again else 12 if lapsed and name.endswith(b"{b}") else 9
        return 1

    async def seal(_: Request) -> int:
        return 9

    server = Answering(answer)
    grantors, options = [server.grantor(name="a"), server.grantor(name="b")], Options(TTL, None, replicas=1)
    session = Session.of(server)
    chain = AllOf(session.context, "hierarchy", "a/b", grantors, options, seal=seal)
    asking = LeaseState(session.context, chain, b"a/b", Request(TTL, 1, wait=True), options, None, None)
    try:
        if lapsed:
            with pytest.raises(RedisTimeoutError, match="ran out"):
                await take(asking, Lease, must=True)
            assert len(server.times("lock_release")) == 2
        else:
            lease = await take(asking, Lease, must=True)
            assert lease.fencing_token == 9
            await lease.release()
    finally:
        session.close()
        await asyncio.sleep(0)
