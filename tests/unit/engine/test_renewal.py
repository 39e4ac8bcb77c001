"""Renewal in virtual time: when it happens, what it changes, and what goes on when it fails."""

import asyncio
import contextlib
import gc
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import anyio
import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lease, LeaseLostError
from aiolocks._core.timing import deadline, retry_delay
from aiolocks._engine.lease import state_of
from aiolocks._engine.renewal import Watchdog
from aiolocks._engine.request import Request, ResultCallback
from aiolocks._grantors.session import Session
from aiolocks._redis.endpoints import Pipelines
from aiolocks.events import Event, on_event
from aiolocks.testing import After, JumpingLoop, ScriptedGrantor
from tests.support.inside import block_loop
from tests.support.jumping import timers
from tests.support.virtual import clock
from tests.unit.engine.leases import END, Around, standing, until_lost


@pytest.mark.parametrize(("ttl", "begun"), [(0.1, 0.0), (3.0, 0.0), (30.0, 0.0), (30.0, 100_000.0), (86400.0, 0.0)])
async def test_renewals_come_at_a_third_of_the_ttl_give_or_take_a_tenth(ttl: float, begun: float) -> None:
    await asyncio.sleep(begun)
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=ttl):
        await asyncio.sleep(200 * ttl)
    gaps = [after - before for before, after in pairwise([begun, *grantor.times("renew")])]
    assert len(gaps) > 540
    assert 0.9 - 1e-6 <= min(gaps) / (ttl / 3) < 0.92
    assert 1.08 < max(gaps) / (ttl / 3) <= 1.1 + 1e-6
    assert {asked.ttl for asked in grantor.asked} == {ttl}


@contextlib.asynccontextmanager
async def of_one_session(count: int, troubles: Sequence[Exception] = ()) -> AsyncIterator[list[ScriptedGrantor]]:
    """Hold a lease of each of so many grantors; renewals of the first meet *troubles* before they succeed."""
    first = ScriptedGrantor(renewals=[*troubles, True])
    grantors = [first, *(ScriptedGrantor(session=first.session) for _ in range(count))]
    leases = [await grantor.acquire() for grantor in grantors]
    yield grantors
    for lease in leases:
        await lease.release()


@pytest.mark.parametrize("took", [20.0, 28.0])
async def test_a_lease_that_began_with_little_left_is_renewed_before_half_of_that_is_over(took: float) -> None:
    grantor = ScriptedGrantor(grants=[After(took, 7), RedisTimeoutError()])
    async with grantor.hold(ttl=30) as lease:
        begun, left = clock(), lease.remaining()
        assert left == pytest.approx(END - took)
        await asyncio.sleep(left)
        assert lease.held
    early = 0.5  # to go with others, though here are none
    assert max(left / 4, left / 2 - early) - 1e-6 <= grantor.times("renew")[0] - begun <= left / 2 + 1e-6


async def test_after_the_last_of_some_leases_has_ended_others_are_renewed_too() -> None:
    first = ScriptedGrantor()
    async with first.hold(ttl=1000, renew=False):  # so that the session goes on
        for _ in range(2):
            async with first.hold(ttl=30):
                await asyncio.sleep(15)
            await asyncio.sleep(100)
        async with first.hold(ttl=30) as lease:
            await asyncio.sleep(100)
            assert lease.held


async def test_the_leases_that_are_left_of_many_are_renewed_in_time() -> None:
    """Of any length: the many are forgotten all at once when they are more than those that are left."""
    first = ScriptedGrantor()
    async with first.hold():
        others = [ScriptedGrantor(session=first.session) for _ in range(400)]
        lengths = [30 if number % 2 else 600 for number in range(400)]
        leases = [await other.acquire(ttl=ttl) for other, ttl in zip(others, lengths, strict=True)]
        await asyncio.sleep(13)  # since when all have their order, and some were renewed
        chosen = sorted(random.sample(range(400), 20))
        for number, lease in enumerate(leases):
            if number not in chosen:
                assert await lease.release()
        assert len(first.session.watchdog._heap) <= 64
        await asyncio.sleep(600)
        for number in chosen:
            gaps = [later - sooner for sooner, later in pairwise([0.0, *others[number].times("renew")])]
            assert max(gaps) <= lengths[number] / 3 * 1.1 + 0.01
            assert await leases[number].release()


async def test_leases_taken_at_one_instant_are_spread_and_come_early_only_to_go_with_others() -> None:
    """By a twentieth of the time at most."""
    async with of_one_session(100) as others:
        await asyncio.sleep(12)
        together = Counter(other.times("renew")[0] for other in others)
        assert max(together.values()) <= 50, "some may go together, but not all"
        assert max(together) - min(together) > 1, "they are spread over a fifth of the time between two renewals"
        await asyncio.sleep(288)
        for other in others:
            gaps = [later - sooner for sooner, later in pairwise(other.times("renew"))]
            assert min(gaps) >= 9 - 0.5 - 0.01
            assert max(gaps) <= 11 + 0.01


async def test_a_renewal_that_failed_is_not_tried_again_before_its_time_because_others_are_due() -> None:
    async with of_one_session(200, [RedisTimeoutError()] * 18) as (failing, *_):  # until the others' second renewals
        await asyncio.sleep(28)
        for failures, (sooner, later) in enumerate(pairwise(failing.times("renew")[:19]), 1):
            assert later - sooner >= retry_delay(30, failures) - 1e-6


async def test_after_max_hold_a_lease_is_renewed_no_more_and_runs_out() -> None:
    grantor = ScriptedGrantor()
    await until_lost(grantor.hold(ttl=30, max_hold=3600))
    assert 3600 - 11 <= grantor.times("renew")[-1] < 3600
    assert clock() == deadline(sent_at=grantor.times("renew")[-1], ttl=30)


async def test_a_renewal_and_the_next_one_count_from_its_request_and_not_from_its_reply() -> None:
    grantor = ScriptedGrantor(renewals=[After(5, True)])
    async with grantor.hold(ttl=30) as lease:
        await asyncio.sleep(11)
        (sent_at,) = grantor.times("renew")
        assert lease.remaining() == pytest.approx(END - 11)
        await asyncio.sleep(5)
        assert lease.remaining() == pytest.approx(deadline(sent_at=sent_at, ttl=30) - 16)
        await asyncio.sleep(600)
    gaps = [after - before for before, after in pairwise(grantor.times("renew"))]
    assert 9 - 1e-6 <= min(gaps) <= max(gaps) <= 11 + 1e-6


@pytest.mark.parametrize("trouble", [ConnectionError(), RedisTimeoutError(), ValueError("an oversight of ours")])
async def test_a_failed_renewal_changes_nothing_and_is_retried_until_the_deadline(trouble: Exception) -> None:
    grantor = ScriptedGrantor(renewals=[trouble])
    end = END
    with pytest.raises(LeaseLostError):
        async with grantor.hold(ttl=30) as lease:
            await asyncio.sleep(28)
            assert lease.held
            assert lease.remaining() == pytest.approx(end - 28)
            await anyio.sleep_forever()
    attempts = grantor.times("renew")
    assert clock() == end
    assert attempts[-1] < end
    gaps = [after - before for before, after in pairwise([*attempts, end])]
    assert max(gaps) <= 1 + 1e-9
    assert min(gaps[:-1]) >= 0.02


async def test_the_first_renewal_that_succeeds_again_saves_the_lease_and_ends_the_trouble() -> None:
    trouble = [ConnectionError()] * 20
    grantor = ScriptedGrantor(renewals=[*trouble, True, *trouble, True])
    async with grantor.hold(ttl=30) as lease:
        await asyncio.sleep(3600)
        assert lease.held
    gaps = [after - before for before, after in pairwise(grantor.times("renew"))]
    assert gaps[:20] == pytest.approx(gaps[21:41])  # quick at first, then slower, both times
    assert gaps[0] < 0.05
    assert min(gaps[20], *gaps[41:]) >= 9 - 1e-6


@pytest.mark.parametrize("answer", [True, False, ConnectionError()])
async def test_a_renewal_s_reply_after_the_release_changes_nothing(answer: "bool | Exception") -> None:
    grantor = ScriptedGrantor(renewals=[After(5, answer)])
    async with grantor.hold(ttl=30) as lease:
        await asyncio.sleep(12)
        assert len(grantor.times("renew")) == 1
    await asyncio.sleep(3600)
    assert standing(lease) == (False, False, 0.0)
    assert len(grantor.times("renew")) == 1


class ToldByHand(Around):
    """A stub whose renewals are answered when the test says so, within the same turn of the loop."""

    def __init__(self, stub: ScriptedGrantor) -> None:
        super().__init__(stub)
        self.sent: list[tuple[float, ResultCallback]] = []

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        self.sent.append((clock(), tell))


async def test_a_lease_once_seen_lost_stays_lost_though_a_renewal_is_read_before_the_timers_run() -> None:
    """A loop that stood still past the deadline reads what came in time first; the next holder may be at work."""
    grantor = ToldByHand(ScriptedGrantor())
    lease = await grantor.asking().acquire(Lease, by_hand=True)
    await asyncio.sleep(12)
    ((sent_at, tell),) = grantor.sent
    block_loop(20)
    assert clock() < deadline(sent_at, ttl=30), "counted from its request, there would be something left"
    assert standing(lease) == (False, True, 0.0)
    tell(True)
    assert standing(lease) == (False, True, 0.0)
    await asyncio.sleep(0.1)
    assert standing(lease) == (False, True, 0.0)
    assert not await lease.release()


@pytest.mark.parametrize("answer", [ValueError("an oversight of ours"), After(math.inf, True)])
async def test_a_renewal_that_fails_or_is_never_answered_holds_up_no_others(answer: "Exception | After") -> None:
    bad = ScriptedGrantor(name="bad", renewals=[answer])
    good = ScriptedGrantor(name="good", session=bad.session)
    async with good.hold(ttl=30) as lease:
        await until_lost(bad.hold(ttl=30))
        assert clock() == END
        await asyncio.sleep(3600)
        assert lease.held


class Raising(ToldByHand):
    defects = 3

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        super().renew(request, ttl, tell)
        if len(self.sent) <= self.defects:
            raise RuntimeError("a defect")
        tell(True)


async def test_a_renewal_that_raises_is_logged_and_soon_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    grantor = Raising(ScriptedGrantor())
    lease = await grantor.asking().acquire(Lease, by_hand=True)
    await asyncio.sleep(3600)
    assert await lease.release()
    gaps = [later - sooner for (sooner, _), (later, _) in pairwise(grantor.sent)]
    assert max(gaps[:3]) <= 0.05
    assert 9 - 1e-6 <= min(gaps[3:]) <= max(gaps[3:]) <= 11 + 1e-6
    assert [record.getMessage() for record in caplog.records] == ["stub 'scripted': renewing failed"] * 3
    assert all(record.exc_info for record in caplog.records)


async def test_when_its_session_is_closed_a_lease_runs_out_and_its_body_is_stopped_then() -> None:
    for wait in (5, 15):  # before it was first renewed, and after
        grantor = ScriptedGrantor()
        begun = clock()
        with pytest.raises(LeaseLostError):
            async with grantor.hold(ttl=30):
                await asyncio.sleep(wait)
                grantor.session.close()
                renewed = [begun, *grantor.times("renew")]
                await anyio.sleep_forever()
        assert clock() == pytest.approx(deadline(sent_at=renewed[-1], ttl=30), abs=1e-6)
        assert grantor.times("renew") == renewed[1:]


def test_a_loop_that_was_closed_under_its_leases_is_no_trouble_to_the_next() -> None:
    async def take() -> tuple[Session, Lease]:
        grantor = ScriptedGrantor()
        return grantor.session, await grantor.acquire()

    async def take_another() -> None:
        async with ScriptedGrantor(session=Session.of(session.context.pool)).hold() as another:
            another.check()

    loop = JumpingLoop()
    session, lease = loop.run_until_complete(take())
    loop.close()
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(take_another())
    session.close()
    del lease


@pytest.mark.parametrize("kind", ["lost", "renewed"])
def test_a_listener_that_is_interrupted_ends_no_renewals_of_other_leases(kind: str) -> None:
    async def hold() -> None:
        first = ScriptedGrantor(name="first")
        lost = await first.acquire(max_hold=1)  # so that the timer, and no reply, finds that it is lost
        leases = [await ScriptedGrantor(session=first.session).acquire() for _ in range(100)]
        await asyncio.sleep(300)
        assert [lost.lost, *(lease.held for lease in leases)] == [True] * 101

    def interrupt(event: Event) -> None:
        if event.kind == kind and not interrupted:
            interrupted.append(event)
            raise KeyboardInterrupt

    interrupted = list[Event]()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner, contextlib.ExitStack() as stack:
        stack.callback(on_event(interrupt))
        holding = runner.get_loop().create_task(hold())
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(holding)
        runner.get_loop().run_until_complete(holding)


async def test_however_often_all_are_to_be_renewed_at_once_they_are_when_it_matters_next() -> None:
    """A thousand slots of a Cluster that had moved put off for minutes what a lost link asked for."""
    grantor = ScriptedGrantor()
    lease = await grantor.acquire(ttl=30)
    renewer = grantor.session.watchdog
    for _ in range(1000):
        renewer.renew_all()
    await asyncio.sleep(1)
    assert grantor.times("renew") == [0]
    renewer.renew_all()
    await asyncio.sleep(0.01)
    assert grantor.times("renew") == [0, 1]
    await lease.release()


class Stalling:
    def __init__(self) -> None:
        self.still = False
        self.asked: list[tuple[float, float]] = []

    def __call__(self, longest: float, now: float) -> bool:
        self.asked.append((longest, now))
        return self.still


async def beside(stalling: Stalling, grantor: ScriptedGrantor) -> tuple[Lease, Watchdog]:
    """Return a lease that is renewed as from a thread, though all is in one loop here."""
    loop = asyncio.get_running_loop()
    thread = Pipelines(loop, clock, lambda: None, lambda: None)
    watchdog = Watchdog(loop, clock, thread, stalling)
    lease = await grantor.asking(ttl=30, renew=False).acquire(Lease)
    state = state_of(lease)
    state.renewer = watchdog
    watchdog.add(state, clock())
    return lease, watchdog


async def test_a_process_that_stood_still_between_the_grant_and_its_watch_renews_at_once() -> None:
    lease, watchdog = await beside(Stalling(), grantor := ScriptedGrantor())
    watchdog.stop_renewing(state_of(lease))
    watchdog.close()
    block_loop(26)
    watchdog.add(state_of(lease), clock() - 26)
    await asyncio.sleep(0.1)
    assert len(grantor.times("renew")) == 1
    assert await lease.release()


async def test_while_the_loop_stands_still_nothing_is_renewed_and_soon_after_all_is() -> None:
    stalling, grantor = Stalling(), ScriptedGrantor()
    lease, watchdog = await beside(stalling, grantor)
    stalling.still = True
    await asyncio.sleep(15)
    assert not grantor.times("renew")
    assert {longest for longest, _ in stalling.asked} == {60.0}
    stalling.still = False
    await asyncio.sleep(0.05)
    assert len(grantor.times("renew")) == 1
    await asyncio.sleep(3600)
    assert await lease.release()
    watchdog.close()


@pytest.mark.parametrize("taken", [False, True])
async def test_a_loss_in_the_thread_shows_at_once_and_the_loop_is_told(taken: bool) -> None:
    stalling, grantor = Stalling(), ScriptedGrantor(renewals=[False])
    lease, watchdog = await beside(stalling, grantor)
    stalling.still = not taken
    assert await lease.wait_lost()
    assert clock() == (grantor.times("renew")[0] if taken else END)
    await lease.release()
    watchdog.close()


async def test_what_a_thread_s_watchdog_held_is_not_its_loop_s_to_watch_when_it_is_closed() -> None:
    lease, watchdog = await beside(Stalling(), ScriptedGrantor())
    await asyncio.sleep(1)
    watchdog.close()
    assert timers() == 0
    await lease.release()


async def test_leases_of_all_lengths_have_one_timer() -> None:
    grantor = ScriptedGrantor()
    leases = [await grantor.acquire(ttl=ttl) for ttl in (3000, 300, 30, 3, 30, 300)]
    for _ in range(20):
        assert timers() == 1
        await asyncio.sleep(7)
    for lease in leases:
        assert await lease.release()


@pytest.mark.rest
async def test_leases_that_ended_do_not_pile_up() -> None:
    asyncio.get_running_loop().set_debug(False)  # it would note the stack for each callback
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=3600):
        before = len(gc.get_objects())
        for _ in range(10_000):
            await (await grantor.acquire(ttl=3600)).release()
        watchdog = grantor.session.watchdog
        assert len(watchdog._heap) < 100
        assert len(watchdog._live | watchdog.fresh) == 1
        assert timers() <= 2
        grantor.asked.clear()
        grantor.requests.clear()
        grantor._fences.clear()
        gc.collect()
        assert len(gc.get_objects()) - before < 2_000
        assert clock() == 0


async def test_no_timer_outlives_a_lease_that_was_watched_before_it_was_entered() -> None:
    grantor = ScriptedGrantor()
    lease = await grantor.acquire()
    watching = asyncio.create_task(lease.wait_lost())
    await asyncio.sleep(5)
    async with lease:
        await asyncio.sleep(5)
    assert not await watching
    await asyncio.sleep(1)
    assert timers() == 0


async def test_a_lease_that_is_renewed_at_once_counts_from_then_on_or_is_lost() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=30):
        await asyncio.sleep(1)
        asked = grantor.context.clock()
        grantor.session.watchdog.renew_all()
        await asyncio.sleep(20)
        first, second, *_ = grantor.times("renew")
        assert first == pytest.approx(asked)
        assert 9 <= second - first <= 11, "a third of the TTL later, as ever"
    grantor = ScriptedGrantor(renewals=[False])
    lease = await grantor.acquire(ttl=30)
    await asyncio.sleep(1)
    assert lease.held
    grantor.session.watchdog.renew_all()
    await asyncio.sleep(0.001)
    assert lease.lost


async def test_a_link_that_is_cut_again_and_again_has_all_renewed_four_times_a_second_at_most() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=30):
        begun = grantor.context.clock()
        for _ in range(100):
            grantor.session.watchdog.renew_all()
            await asyncio.sleep(0.02)
        assert 8 <= len([at for at in grantor.times("renew") if at <= begun + 2]) <= 9


async def test_a_renewal_of_all_skips_leases_that_are_on_their_way_or_not_renewed_any_more() -> None:
    on_its_way = ScriptedGrantor(renewals=[After(5, True)])
    async with on_its_way.hold(ttl=30), on_its_way.hold(ttl=30, max_hold=1) as bounded:
        await asyncio.sleep(12)
        sent = len(on_its_way.times("renew"))
        assert sent == 1
        on_its_way.session.watchdog.renew_all()
        await asyncio.sleep(0.1)
        assert len(on_its_way.times("renew")) == sent
        assert bounded.held


async def test_only_the_wanted_leases_are_renewed() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=30), grantor.hold(ttl=20):
        await asyncio.sleep(1)
        for ttl, renewals in ((10, 0), (20, 1), (30, 2)):
            grantor.session.watchdog.renew_all(lambda state: state.request.terms.ttl == ttl)  # noqa: B023  # called at once
            await asyncio.sleep(0.5)
            assert len(grantor.times("renew")) == renewals


async def test_very_many_are_renewed_a_hundred_at_a_time() -> None:
    """Ten thousand at once kept the loop from all else for a second."""
    grantor = ScriptedGrantor()
    leases = [await grantor.acquire(ttl=30) for _ in range(1000)]
    await asyncio.sleep(1)
    begun = grantor.context.clock()
    grantor.session.watchdog.renew_all()
    await asyncio.sleep(0.001)
    assert len(grantor.times("renew")) == 100
    await asyncio.sleep(0.2)
    renewed = grantor.times("renew")
    assert len(renewed) == len(leases)
    assert max(renewed) - begun < 0.1
    for lease in leases:
        await lease.release()
