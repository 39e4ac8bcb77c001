"""What is told of an acquisition, and its seconds, in virtual time."""

import asyncio
import contextlib
import logging
from typing import Any

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError
from aiolocks._core import events
from aiolocks._engine.block import Block
from aiolocks._redis.connection import ConnectionCancelled
from aiolocks.events import on_event
from aiolocks.testing import After, ScriptedGrantor
from tests.support.heard import Heard, hearing
from tests.support.inside import block_loop
from tests.support.virtual import clock
from tests.unit.engine.leases import END, this_task, until_lost


def shown(heard: Heard) -> list[tuple[str, float, int]]:
    return [(event.kind, event.seconds, event.fencing_token) for event in heard]


async def test_a_block_is_acquired_and_released_with_the_time_it_waited_and_held() -> None:
    grantor = ScriptedGrantor(grants=[After(0.25, 7)])
    with hearing() as heard:
        for _ in range(3):
            async with grantor.hold(ttl=30):
                await asyncio.sleep(5)
    assert shown(heard) == [("acquired", 0.25, 7), ("released", 5.0, 7)] * 3
    assert {(event.name, event.primitive) for event in heard} == {("scripted", "stub")}
    numbers = [event.acquisition for event in heard]
    assert (numbers[::2], len(set(numbers))) == (numbers[1::2], 3)
    assert 0 not in numbers
    before = events.number()
    async with ScriptedGrantor().hold():
        pass
    assert events.number() == before + 1


async def test_a_listener_added_after_the_grant_gets_events_from_another_thread() -> None:
    state = await ScriptedGrantor().asking(ttl=30, renew=False).acquire(lambda state: state)
    with hearing() as heard:
        state.emit_from_thread("stalled", 2.0)
        await asyncio.sleep(0.01)
    assert shown(heard) == [("stalled", 2.0, state.fence)]


async def test_a_body_is_stopped_though_a_listener_blocked_the_loop_for_longer_than_its_lease_lasts() -> None:
    grantor, began = ScriptedGrantor(), clock()
    stop = on_event(lambda event: block_loop(2) if event.kind == "acquired" else None)
    try:
        with pytest.raises(LeaseLostError), anyio.CancelScope(shield=True):  # a shield around the block does not count
            async with grantor.hold(ttl=1, renew=False):
                await asyncio.sleep(5)
        assert clock() - began < 3
        async with ScriptedGrantor(session=grantor.session).hold():  # W12: this block still counts after the loss
            await (inner := grantor.asking(renew=False, on_lost="flag", ttl=1)).acquire(Lease, block=Block(this_task()))
            assert grantor.context.holdings.inside(this_task(), inner.base) == 1
    finally:
        stop()


async def test_a_caller_that_finds_others_in_the_way_waits_and_this_is_told_once() -> None:
    grantor = ScriptedGrantor(grants=[After(0.5, "queued")])
    with hearing() as heard:
        waiting = asyncio.create_task(grantor.acquire(ttl=30))
        await asyncio.sleep(2)
        assert shown(heard) == [("waiting", 0.5, 0)]
        grantor.requests[0].busy_for(10.0)  # as the next re-check says
        grantor.hand_over(5)
        lease = await waiting
        await lease.release()
    assert shown(heard) == [("waiting", 0.5, 0), ("acquired", 2.0, 5), ("released", 0.0, 5)]
    assert len({event.acquisition for event in heard}) == 1


async def test_a_caller_that_has_given_up_is_not_told_that_it_waits() -> None:
    grantor = ScriptedGrantor(grants=[After(5, 7)])
    with hearing() as heard:
        with pytest.raises(RedisTimeoutError):
            await grantor.acquire(ttl=30, timeout=1)
        grantor.requests[0].busy_for(10.0)  # as the late answer says
    assert shown(heard) == [("timed_out", 1.0, 0)]


async def test_a_caller_that_asks_again_as_its_turn_came_too_late_waits_once() -> None:
    grantor = ScriptedGrantor(grants=["queued", "queued", 8])
    with hearing() as heard:
        waiting = asyncio.create_task(grantor.acquire(ttl=10))
        await asyncio.sleep(1)
        grantor.requests[0].grant(5, -9.0)  # of which hardly anything is left
        await asyncio.sleep(1)
        grantor.hand_over(6)
        await asyncio.sleep(1)
        if not waiting.done():
            grantor.hand_over(9)
        await (await waiting).release()
    assert heard.kinds() == ["waiting", "acquired", "released"]


@pytest.mark.parametrize(("answer", "timeout", "error", "told"), [
    ("queued", 3, AcquireTimeoutError, [("waiting", 0.0, 0), ("timed_out", 3.0, 0)]),
    ("busy", 0, AcquireTimeoutError, [("timed_out", 0.0, 0)]),
    (After(60, 1), 3, RedisTimeoutError, [("timed_out", 3.0, 0)]),
    (RedisConnectionError("gone"), None, RedisConnectionError, [("failed", 0.0, 0)]),
], ids=["its time is over", "it asks once", "Redis is silent", "an error"])  # fmt: skip
async def test_a_caller_that_acquires_nothing_timed_out_or_failed(
    answer: Any, timeout: float | None, error: type[Exception], told: list[tuple[str, float, int]]
) -> None:
    grantor = ScriptedGrantor(grants=[answer])
    with hearing() as heard, pytest.raises(error):
        async with grantor.hold(timeout=timeout):
            pytest.fail("the body ran")
    assert shown(heard) == told


async def test_what_acquires_nothing_since_it_was_cancelled_or_destroyed_is_told_as_cancelled() -> None:
    grantor = ScriptedGrantor(grants=["queued"])
    with hearing() as heard:
        waiting = asyncio.create_task(grantor.acquire())
        await asyncio.sleep(4)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert shown(heard) == [("waiting", 0.0, 0), ("cancelled", 4.0, 0)]
    with hearing() as heard:
        coroutine = grantor.acquire()
        coroutine.send(None)
        coroutine.close()
        assert heard.kinds() == []  # it may be destroyed in any thread
        await asyncio.sleep(0.1)
    assert heard.kinds() == ["cancelled"]


async def test_renewals_are_told_with_how_long_the_answer_took_in_a_block_and_by_hand() -> None:
    grantor = ScriptedGrantor(renewals=[After(0.5, True)])
    with hearing() as heard:
        async with grantor.hold(ttl=30):
            await asyncio.sleep(14)
    assert heard.kinds() == ["acquired", "renewed", "released"]
    assert heard[1].seconds == pytest.approx(0.5)
    grantor = ScriptedGrantor(renewals=[After(0.5, True), False])
    with hearing() as heard:
        lease = await grantor.acquire(ttl=30, renew=False)
        assert await lease.renew()
        assert not await lease.renew()
        await lease.release()
    assert heard.kinds() == ["acquired", "renewed", "lost"]
    assert heard[1].seconds == pytest.approx(0.5)


async def test_failed_renewals_are_told_with_what_is_left_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    grantor = ScriptedGrantor(renewals=[RedisConnectionError("gone")])
    with hearing() as heard:
        await until_lost(grantor.hold(ttl=30))
    assert (heard.kinds("renewal_failed"), heard.kinds()[-1]) == (["acquired", "endangered", "lost"], "lost")
    left = [event.seconds for event in heard.of("renewal_failed")]
    assert left == sorted(left, reverse=True)
    assert 15 < left[0] < 21
    line, loss = [record.getMessage() for record in caplog.records]
    assert "could not be renewed (ConnectionError: gone)" in line
    assert "not renewed within its 30 s TTL" in loss


async def test_a_lease_that_cannot_be_renewed_for_half_of_its_ttl_is_in_danger_once_until_it_is_renewed() -> None:
    failing = [RedisConnectionError("gone")] * 13
    grantor = ScriptedGrantor(renewals=[*failing, True, *failing, True])
    times: list[float] = []
    unsubscribe = on_event(lambda event: times.append(clock()))
    with hearing() as heard:
        async with grantor.hold(ttl=30) as lease:
            await asyncio.sleep(60)
    unsubscribe()
    told = heard.kinds("renewal_failed")
    assert told[:5] == ["acquired", "endangered", "renewed", "endangered", "renewed"]
    assert set(told[5:]) == {"renewed", "released"}
    when = [at for at, event in zip(times, heard, strict=True) if event.kind != "renewal_failed"]
    for since, at, danger in zip(when[0::2], when[1::2], heard.of("endangered"), strict=False):
        assert 15 <= at - since < 16
        assert danger.seconds == pytest.approx(since + END - at)
        assert (danger.fencing_token, danger.acquisition) == (lease.fencing_token, heard[0].acquisition)


async def test_a_lease_whose_loop_was_blocked_for_half_of_its_ttl_is_in_danger_though_it_is_then_renewed() -> None:
    with hearing() as heard:
        async with ScriptedGrantor().hold(ttl=30):
            block_loop(20)
            await asyncio.sleep(5)
    assert heard.kinds() == ["acquired", "endangered", "renewed", "released"]


@pytest.mark.parametrize(("grant", "options"), [
    (1, {}), (After(14, 1), {}), (1, {"renew": False}), (1, {"max_hold": 25}),
], ids=["renewed", "half of its TTL over soon after it began", "never to be renewed", "held for too long"])  # fmt: skip
async def test_no_other_lease_is_in_danger(grant: Any, options: Any) -> None:
    with hearing() as heard, contextlib.suppress(LeaseLostError):
        async with ScriptedGrantor(grants=[grant]).hold(ttl=30, **options):
            await asyncio.sleep(600)
    assert not heard.of("endangered")


async def test_a_renewal_cut_off_as_the_program_ends_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    grantor = ScriptedGrantor(renewals=[ConnectionCancelled("Reading was cancelled."), True])
    with hearing() as heard:
        async with grantor.hold(ttl=30):
            await asyncio.sleep(30)
    assert heard.kinds()[:3] == ["acquired", "renewal_failed", "renewed"]
    assert not caplog.records


@pytest.mark.parametrize("told", ["lost", "revoked"])
async def test_a_loss_is_told_once_with_the_time_held(told: str) -> None:
    grantor = ScriptedGrantor(renewals=["revoked" if told == "revoked" else False])
    with hearing() as heard:
        await until_lost(grantor.hold(ttl=30))
    assert heard.kinds() == ["acquired", told]
    assert 8.9 < heard[1].seconds < 11.1


async def test_a_loss_is_one_warning_whether_it_is_raised_or_not(caplog: pytest.LogCaptureFixture) -> None:
    """Else an alarm on the log alone stays silent where the caller handles LeaseLostError."""
    grantor = ScriptedGrantor(renewals=[False])
    await until_lost(grantor.hold(ttl=30))
    async with grantor.hold(ttl=30, on_lost="flag"):
        await asyncio.sleep(60)
    lease = await grantor.acquire(ttl=30)
    await asyncio.sleep(60)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert all("stub 'scripted': it is gone from the server" in record.getMessage() for record in caplog.records)
    await lease.release()


async def test_a_loss_that_only_the_release_finds_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    grantor = ScriptedGrantor(withdrawals=[False, False])
    with hearing() as heard:
        with pytest.raises(LeaseLostError):
            async with grantor.hold(ttl=30):
                await asyncio.sleep(2)
        lease = await grantor.acquire(ttl=30)
        assert not await lease.release()
    assert shown(heard) == [("acquired", 0.0, 1), ("lost", 2.0, 1), ("acquired", 0.0, 2), ("lost", 0.0, 2)]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


async def test_an_unrenewed_lease_is_lost_at_its_deadline_though_no_task_asks(caplog: pytest.LogCaptureFixture) -> None:
    grantor = ScriptedGrantor()
    with hearing() as heard:
        lease = await grantor.acquire(ttl=10, renew=False)
        await asyncio.sleep(60)
        assert heard.kinds() == ["acquired", "lost"]
        assert 9 < heard[1].seconds < 10
        await lease.release()
    assert len(heard) == 2
    assert not caplog.records


async def test_a_release_that_is_not_confirmed_is_a_release(caplog: pytest.LogCaptureFixture) -> None:
    grantor = ScriptedGrantor(withdrawals=[RedisConnectionError("gone")])
    with hearing() as heard:
        async with grantor.hold(ttl=30):
            await asyncio.sleep(2)
        await asyncio.sleep(60)
    assert shown(heard) == [("acquired", 0.0, 1), ("released", 2.0, 1)]


async def test_a_listener_that_begins_later_hears_of_the_rest() -> None:
    grantor = ScriptedGrantor(grants=[3, "queued"])
    lease = await grantor.acquire()
    waiting = asyncio.create_task(grantor.acquire())
    await asyncio.sleep(2)
    with hearing() as heard:
        await lease.release()
        grantor.hand_over(4)
        await (await waiting).release()
    assert shown(heard) == [("released", 2.0, 3), ("acquired", 2.0, 4), ("released", 0.0, 4)]
    assert heard[0].acquisition != heard[1].acquisition == heard[2].acquisition


async def test_what_happens_before_the_body_is_told_in_the_task_that_asked() -> None:
    told: dict[str, asyncio.Task[object] | None] = {}
    unsubscribe = on_event(lambda event: told.update({event.kind: asyncio.current_task()}))
    grantor = ScriptedGrantor(grants=["queued", 2])
    with pytest.raises(AcquireTimeoutError):
        async with grantor.hold(timeout=1):
            pytest.fail("the body ran")
    async with grantor.hold():
        unsubscribe()
    assert [told["timed_out"], told["acquired"]] == [this_task()] * 2


async def test_lines_at_debug_level_begin_with_the_next_acquisition(caplog: pytest.LogCaptureFixture) -> None:
    grantor = ScriptedGrantor(grants=[7])
    async with grantor.hold(ttl=30):
        with caplog.at_level(logging.DEBUG, "aiolocks"):
            async with grantor.hold(ttl=30):
                await asyncio.sleep(12)
    said = [record.getMessage().partition(" (")[0] for record in caplog.records if record.name == "aiolocks"]
    assert said == ["stub 'scripted': acquired", "stub 'scripted': renewed", "stub 'scripted': released"]
