"""`Election`: one leads, and stands again whatever ends its lease. Only its own code or a cancellation ends `run`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Election, Lease, LeaseLostError, Lock, LockManager
from aiolocks.testing import lose
from tests.support.elections import Leading, running, waiting
from tests.support.lateness import SLACK, bounded, in_time
from tests.support.primitives import NO_SERVER, cancelled

pytestmark = pytest.mark.usefixtures("quick_sessions")

NAME = "scheduler"


@pytest.fixture
def election(client: Redis) -> Election:
    return Election(client, NAME, ttl=2)


@pytest.fixture
def other(stranger: Redis) -> Election:
    """A candidate of another process."""
    return Election(stranger, NAME, ttl=2)


async def test_of_candidates_that_stand_at_the_same_moment_one_leads_and_the_next_follows_it(
    election: Election, other: Election
) -> None:
    leads = {candidate: Leading() for candidate in (election, other)}
    async with AsyncExitStack() as stack:
        tasks = {each: await stack.enter_async_context(running(each, lead)) for each, lead in leads.items()}
        await waiting(election, 1)
        async with bounded(10):
            while not (election.is_leader or other.is_leader):
                await asyncio.sleep(0.001)
        first, second = sorted(leads, key=lambda each: not each.is_leader)
        lease = await leads[first].elected()
        assert (first.is_leader, first.term) == (True, lease.fencing_token)
        assert (second.is_leader, second.term, leads[second].terms) == (False, None, [])
        leader = await second.leader()
        assert leader is not None
        assert leader.fencing_token == lease.fencing_token
        tasks[first].cancel()
        assert (await leads[second].elected()).fencing_token > lease.fencing_token
        assert (first.is_leader, first.term, leads[first].cancelled) == (False, None, 1)
        assert tasks[first].cancelled()
    assert await election.leader() is None


async def test_what_lead_returns_is_returned_once_its_lease_is_released(election: Election, other: Election) -> None:
    async def lead(lease: Lease) -> str:
        assert lease.held
        return "done"

    async with in_time(SLACK * 1):
        for _ in range(20):  # at once, again and again
            assert await election.run(lead) == "done"
    assert await other.leader() is None
    assert repr(election) == f"<Election {NAME!r} idle>"


class OwnError(BaseException):
    """Is no Exception."""


@pytest.mark.parametrize(
    "error", [ValueError("own"), OwnError("own"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()]
)
async def test_what_lead_raises_leaves_run_as_it_is_once_its_lease_is_released(
    election: Election, other: Election, error: BaseException
) -> None:
    async def lead(lease: Lease) -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as caught:
        await election.run(lead)
    assert caught.value is error
    assert await other.leader() is None
    async with running(election, Leading()):  # the same object can stand again
        pass


async def test_a_candidate_that_returns_at_once_in_a_loop_starves_no_other(election: Election, other: Election) -> None:
    async def again() -> None:
        while True:
            await election.run(returns)

    lead = Leading()
    task = asyncio.create_task(again())
    async with running(other, lead), in_time(SLACK * 1):
        await lead.elected()
    await cancelled(task)


async def lost_quietly(lease: Lease) -> None:
    await lease.wait_lost()


async def lost_by_its_own_check(lease: Lease) -> None:
    await lease.wait_lost()
    lease.check()


async def lost_in_a_group(lease: Lease) -> None:
    async def check() -> None:
        with anyio.CancelScope(shield=True):
            await lease.wait_lost()
        lease.check()

    async with asyncio.TaskGroup() as group:
        group.create_task(check())
        group.create_task(check())


async def answered_by_a_value(lease: Lease) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "of a leader that had lost"
    raise AssertionError


async def swallowed_for_a_while(lease: Lease) -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


@pytest.mark.parametrize(
    "work", [None, lost_quietly, lost_by_its_own_check, lost_in_a_group, answered_by_a_value, swallowed_for_a_while]
)
async def test_a_loss_cancels_lead_and_the_same_process_stands_again(
    client: Redis, caplog: pytest.LogCaptureFixture, work: Callable[[Lease], Awaitable[object]] | None
) -> None:
    caplog.set_level(logging.WARNING)
    election, lead = Election(client, NAME, ttl=1), Leading(work)
    async with running(election, lead) as task:
        for term in range(1, 4):
            lease = await lead.elected()
            assert (election.term, len(lead.terms)) == (lease.fencing_token, term)
            lose(lease)
            assert (election.is_leader, election.term) == (False, None)
            assert await election.resign() is False
        await lead.elected()
        assert not task.done()
    assert lead.terms == sorted(set(lead.terms))
    assert len(caplog.records) == 3, [record.getMessage() for record in caplog.records]


async def test_a_scope_catches_its_cancellation_if_lead_swallows_it_until_the_lease_is_lost(election: Election) -> None:
    """P12."""

    async def work(lease: Lease) -> None:
        scope.cancel()
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lose(lease)

    task = asyncio.current_task()
    with anyio.CancelScope() as scope:
        await election.run(work)
    assert scope.cancelled_caught
    assert task is not None
    assert not task.cancelling()


async def test_an_exception_that_answers_a_loss_leaves_run(election: Election) -> None:
    async def work(lease: Lease) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("own")

    lead = Leading(work)
    async with running(election, lead) as task:
        lose(await lead.elected())
        with pytest.raises(ValueError, match="own"):
            await task


async def test_the_loss_of_another_lock_is_an_exception_of_lead_as_it_leads(election: Election, client: Redis) -> None:
    async def lead(lease: Lease) -> None:
        async with Lock(client, "another") as inner:
            lose(inner)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLostError) as caught:
        await election.run(lead)
    assert caught.value.name == "another"
    assert await election.leader() is None


async def test_resign_goes_to_the_end_of_the_queue(election: Election, other: Election) -> None:
    leads = Leading(), Leading()
    async with running(election, leads[0]):
        first = await leads[0].elected()
        async with running(other, leads[1]):
            await waiting(other, 1)
            assert await other.resign() is False  # it only stands
            assert await election.resign() is True
            assert (leads[0].cancelled, first.held, first.lost) == (1, False, False)
            second = await leads[1].elected()
            assert second.fencing_token > first.fencing_token
            await waiting(other, 1)
            assert repr(election) == f"<Election {NAME!r} standing>"
            assert repr(other) == f"<Election {NAME!r} leading>"
            assert await election.resign() is False
        assert (await leads[0].elected()).fencing_token > second.fencing_token


async def test_resign_twice_waits_twice_for_the_same_end(election: Election) -> None:
    cleaned = asyncio.Event()

    async def work(lease: Lease) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await cleaned.wait()

    lead = Leading(work)
    async with running(election, lead):
        lease = await lead.elected()
        both = [asyncio.create_task(election.resign()) for _ in range(2)]
        with pytest.raises(AcquireTimeoutError, match="has not ended") as caught:
            await election.resign(timeout=0)
        assert (caught.value.name, caught.value.timeout) == (NAME, 0)
        await asyncio.sleep(3)  # for more than a TTL: it is renewed as long as it cleans up
        assert (lease.held, election.is_leader) == (True, True)
        assert repr(election) == f"<Election {NAME!r} resigning>"
        assert not any(task.done() for task in both)
        cleaned.set()
        assert await asyncio.gather(*both) == [True, True]
        assert (await lead.elected()).fencing_token > lease.fencing_token
    assert await election.resign() is False


async def test_lead_itself_resigns_and_is_cancelled_at_its_next_await(election: Election) -> None:
    resigned: list[bool] = []

    async def work(lease: Lease) -> str:
        if len(lead.terms) == 2:
            return "the second term"
        resigned.append(await election.resign())
        await asyncio.sleep(0)
        raise AssertionError

    lead = Leading(work)
    assert await election.run(lead) == "the second term"
    assert (resigned, lead.cancelled) == ([True], 1)


async def test_a_lead_that_swallows_cancellation_is_cancelled_until_it_ends_and_leads_alone_until_then(
    election: Election, other: Election
) -> None:
    swallowed = 0

    async def work(lease: Lease) -> str:
        nonlocal swallowed
        while swallowed < 5:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                assert lease.held
                swallowed += 1
        return "of a leader that had resigned"

    lead, follower = Leading(work), Leading()
    async with running(election, lead) as task:
        await lead.elected()
        async with running(other, follower):
            await waiting(other, 1)
            async with in_time(SLACK * 1):
                assert await election.resign() is True
            assert swallowed == 5
            await follower.elected()
            await waiting(other, 1)
            assert not task.done()


async def test_a_cancellation_that_lead_swallowed_ends_run_as_soon_as_lead_has_lost(election: Election) -> None:
    async def work(lease: Lease) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await lease.wait_lost()

    lead = Leading(work)
    async with running(election, lead) as task:
        lease = await lead.elected()
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        lose(lease)
        await asyncio.wait([task])
        assert task.cancelled()
    assert len(lead.terms) == 1


async def in_a_scope(work: Awaitable[object]) -> None:
    with anyio.fail_after(1):
        await work


async def in_a_timeout(work: Awaitable[object]) -> None:
    async with asyncio.timeout(1):
        await work


@pytest.mark.parametrize("limited", [in_a_scope, in_a_timeout])
async def test_time_limits_around_run_end_it_in_any_state(election: Election, other: Election, limited: Any) -> None:
    lead, follower = Leading(), Leading()
    with pytest.raises(TimeoutError):  # while it leads
        await limited(election.run(lead))
    assert lead.cancelled == 1
    async with running(other, follower):
        await follower.elected()
        with pytest.raises(TimeoutError):  # while it stands
            await limited(election.run(lead))
        await waiting(other, 0)
    assert await other.leader() is None


@pytest.mark.parametrize("how", ["cancel", "resign"])
async def test_cancelled_or_resigned_at_any_turn_of_the_loop_nothing_stays_held_or_queued(
    client: Redis, other: Election, how: str
) -> None:
    for turns in range(60):
        election, lead = Election(client, NAME, ttl=2), Leading()
        async with running(election, lead) as task:
            for _ in range(turns):
                await asyncio.sleep(0)
            if how == "resign":
                await election.resign()
                assert not task.done()
        assert task.cancelled()
    async with bounded(10):
        await other.run(returns)


async def returns(lease: Lease) -> None: ...


async def test_an_object_runs_once_at_a_time(election: Election, client: Redis) -> None:
    lead = Leading()
    async with running(election, lead):
        lease = await lead.elected()
        with pytest.raises(RuntimeError, match="it runs already"):
            await election.run(lead)
        assert (lease.held, election.term) == (True, lease.fencing_token)
        second = Leading()
        async with running(Election(client, NAME, ttl=2), second):  # another candidate of the same process
            await waiting(election, 1)
            assert await election.resign()
            await second.elected()
            assert not election.is_leader


async def test_a_plain_function_or_an_election_inside_the_same_election_is_an_error_and_the_lease_is_released(
    election: Election, client: Redis
) -> None:
    plain: Any = print
    for wrong, error, says in (
        (lambda lease: Election(client, NAME).run(returns), RuntimeError, "already holds it"),
        (plain, TypeError, "async def"),
    ):
        with pytest.raises(error, match=says):
            await election.run(wrong)
        assert await election.leader() is None


async def test_changes_yield_the_leader_at_once_and_after_every_change(election: Election, other: Election) -> None:
    changes = other.changes()
    assert await anext(changes) is None
    lead, terms = Leading(), []
    async with running(election, lead):
        for _ in range(2):
            lease = await lead.elected()
            async with in_time(SLACK * 1):
                leader = await anext(changes)
            assert leader is not None
            terms.append(leader.fencing_token)
            assert terms[-1] == lease.fencing_token
            await election.resign()
    async with bounded(10):
        while await anext(changes) is not None:
            pass
    await changes.aclose()
    assert terms == lead.terms[:2]


async def test_revoke_stops_the_leader_and_the_next_is_elected(election: Election, other: Election) -> None:
    lead, follower = Leading(), Leading()
    async with running(election, lead):
        lease = await lead.elected()
        async with running(other, follower):
            await waiting(other, 1)
            (stopped,) = await other.revoke()
            assert stopped.fencing_token == lease.fencing_token
            assert (await follower.elected()).fencing_token > lease.fencing_token
            await waiting(other, 1)


async def test_a_manager_makes_elections_with_its_defaults_and_ends_their_waits(url: str) -> None:
    async with LockManager.from_url(url, ttl=7, acquire_timeout=1, on_lost="flag", holder="billing") as locks:
        lead = Leading()
        async with running(locks.election(NAME), lead):
            assert (await lead.elected()).remaining() > 6
            second = locks.election(NAME, ttl=3)
            task = asyncio.create_task(second.run(lead))
            await waiting(second, 1)
            await locks.aclose()
            with pytest.raises(RuntimeError, match="closed"):
                await task
            with pytest.raises(RuntimeError, match="closed"):
                await locks.election(NAME).run(lead)


@pytest.mark.parametrize(("wrong", "says"), [
        ({"acquire_timeout": 5}, "stands until it is elected"), ({"timeout": 5}, "stands until it is elected"),
        ({"on_lost": "flag"}, "always cancelled"), ({"renew": False}, "always renewed"),
        ({"wait_release": False}, "always waits"), ({"min_hold": 5}, "leads until it resigns"),
        ({"colour": 1}, "its options are ttl, max_hold"),
    ])  # fmt: skip
async def test_an_option_that_makes_no_sense_is_an_error_that_says_why(wrong: dict[str, Any], says: str) -> None:
    makes: list[Callable[..., Election]] = [partial(Election, NO_SERVER), LockManager(NO_SERVER).election]
    for make in makes:
        with pytest.raises(TypeError, match=says):
            make(NAME, **wrong)


async def test_what_cannot_lead_is_an_error_that_says_what_can() -> None:
    election: Any = Election(NO_SERVER, NAME)
    for wrong in (returns(None), None, 3):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"lead must be a coroutine function, as in run\(lead\)"):
            await election.run(wrong)
    with pytest.raises(TypeError, match=r"use its run\(\)"):
        async with election:
            pass
    with pytest.raises(TypeError, match="timeout must be a number"):
        await election.resign(timeout="5")
