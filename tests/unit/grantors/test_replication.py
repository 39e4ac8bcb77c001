"""Leases that replicas must have before they are had, in virtual time."""

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lease
from aiolocks._core.options import Options
from aiolocks._engine.acquire import Acquisition
from aiolocks._engine.context import Grantor
from aiolocks._engine.request import Request
from aiolocks._grantors.all_of import AllOf
from aiolocks._grantors.replication import ReplicasOption
from tests.support.answering import Answering, Asked, Later, session_of

TTL = 1.0


def asking(grantor: Grantor, timeout: float | None = None) -> Acquisition:
    options, request = Options(TTL, timeout), Request(TTL, 1, timeout != 0, extensions=(ReplicasOption(1),))
    return Acquisition(grantor.context, grantor, b"a", request, options, timeout)


@pytest.mark.parametrize("timeout", [None, 0.0, 5.0])
async def test_what_ran_out_while_replicas_were_waited_for_is_an_error_and_undone(timeout: float | None) -> None:
    server = Answering(lambda asked: {"lock_grant": 7, "lock_release": 1}.get(asked.what, Later(TTL, 1)))
    async with session_of(server) as session:
        with pytest.raises(RedisTimeoutError, match="ran out"):
            await asking(server.grantor(), timeout).acquire(Lease)
        assert server.times("lock_release") == [TTL]
        assert not session.context.tokens


@pytest.mark.parametrize("lapsed", [False, True])
async def test_levels_with_one_fencing_token_are_not_granted_if_replicas_needed_a_new_grant(lapsed: bool) -> None:
    """It had run out on the server by then: who held it meanwhile may be ahead of what the other levels know."""
    asked_for: list[bytes] = []

    def answer(asked: Asked) -> object:
        if asked.what != "lock_grant":
            return 1
        name = asked.words[3]
        asked_for.append(name)
        if asked_for.count(name) == 1:
            return 7
        return 12 if lapsed and name.endswith(b"{b}") else 9

    async def seal(_: Request) -> int:
        return 9

    server = Answering(answer)
    grantors = [server.grantor(name=name) for name in ("a", "b")]
    async with session_of(server) as session:
        chain = AllOf(session.context, "hierarchy", "a/b", grantors, Options(TTL), seal=seal)
        if lapsed:
            with pytest.raises(RedisTimeoutError, match="ran out"):
                await asking(chain).acquire(Lease)
            assert len(server.times("lock_release")) == 2
        else:
            lease = await asking(chain).acquire(Lease)
            assert lease.fencing_token == 9
            await lease.release()
