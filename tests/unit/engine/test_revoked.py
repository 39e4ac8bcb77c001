"""W16, the holder's side, in virtual time: a lease whose renewal is refused, and a grant that was taken back."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import LeaseLostError
from aiolocks._engine.lease import state_of
from aiolocks._engine.request import WithdrawnError
from aiolocks.testing import ScriptedGrantor
from tests.support.virtual import clock
from tests.unit.engine.leases import END, later, until_lost


async def test_a_lease_whose_renewal_is_refused_as_revoked_says_so() -> None:
    grantor = ScriptedGrantor(renewals=["revoked"])
    error = await until_lost(grantor.hold(ttl=30))
    assert 9 <= clock() <= 11
    assert (error.reason, grantor.tokens("withdraw")) == ("revoked", [grantor.requests[0].token])


async def test_a_lease_whose_renewal_by_hand_is_refused_as_revoked_says_so() -> None:
    grantor = ScriptedGrantor(renewals=["revoked"])
    lease = await grantor.acquire(renew=False)
    assert not await lease.renew()
    with pytest.raises(LeaseLostError, match="revoked; stop acting on it"):
        lease.check()
    assert not await lease.release()
    assert len(grantor.times("withdraw")) == 1


@pytest.mark.parametrize("found_by", ["the loop", "a thread"])
async def test_the_release_of_a_revoked_lease_is_tried_until_it_ends_on_the_server(found_by: str) -> None:
    """Else those who wait would have to, though the holder has stopped."""
    grantor = ScriptedGrantor(renewals=["revoked"], withdrawals=[RedisConnectionError()])
    if found_by == "the loop":
        await until_lost(grantor.hold(ttl=30))
    else:
        lease = await grantor.acquire(ttl=30, renew=False)
        state = state_of(lease)
        state.request.was_revoked()
        state.lose_from_thread(state.refused_as)
        assert (lease.held, lease.lost) == (False, True)
        assert not await lease.release()
    await asyncio.sleep(60)
    assert 29 <= max(grantor.times("withdraw")) <= 30
    assert len(grantor.times("withdraw")) > 10


async def test_a_lost_lease_that_was_not_revoked_is_not_released_for_long() -> None:
    grantor = ScriptedGrantor(renewals=[False], withdrawals=[RedisConnectionError()])
    lease = await grantor.acquire(ttl=30)
    await lease.wait_lost()
    state_of(lease).lose_from_thread("lost")
    assert not await lease.release()
    await asyncio.sleep(60)
    assert max(grantor.times("withdraw")) <= END


async def test_what_was_revoked_before_its_holder_heard_of_it_is_asked_for_under_another_token() -> None:
    grantor = ScriptedGrantor(grants=["queued", WithdrawnError(), 8])
    later(20, grantor.hand_over, 7)
    async with grantor.hold(ttl=30) as lease:
        first, again, new = grantor.tokens("grant")
        assert first == again != new
        assert (lease.token.encode(), lease.fencing_token) == (new, 8)
        assert grantor.tokens("withdraw") == [first]


@pytest.mark.parametrize("timeout", [None, 0])
async def test_a_request_revoked_while_it_was_repeated_is_sent_under_another_token(timeout: float | None) -> None:
    """The reply to the first attempt was lost."""
    grantor = ScriptedGrantor(grants=[RedisConnectionError(), WithdrawnError(), 8])
    lease = await grantor.acquire(timeout=timeout)
    assert (len(set(grantor.tokens("grant"))), lease.fencing_token) == (2, 8)
    await lease.release()


async def test_a_request_revoked_while_its_caller_awaited_answer_and_turn_has_another_token() -> None:
    """A caller without a timeout awaits the future of its question also while it is in line."""
    grantor = ScriptedGrantor(grants=[WithdrawnError(), 8])
    lease = await grantor.acquire()
    first, new = grantor.tokens("grant")
    assert (lease.token.encode(), lease.fencing_token) == (new, 8)
    assert grantor.tokens("withdraw") == [first]
    await lease.release()


async def test_a_revoked_turn_is_asked_for_again_until_the_callers_time_ends() -> None:
    grantor = ScriptedGrantor(grants=["queued"])
    later(2, lambda: grantor.requests[-1].fail(WithdrawnError()))
    with pytest.raises(TimeoutError):
        async with grantor.hold(timeout=5):
            pytest.fail("not granted")
    assert (clock(), len(set(grantor.tokens("grant")))) == (5, 2)
    assert set(grantor.tokens("withdraw")) == set(grantor.tokens("grant"))
