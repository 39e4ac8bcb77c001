"""One acquisition from request to release, in virtual time: an hour costs a millisecond, and nothing is approximate."""

import asyncio
import contextlib
import gc
import itertools
import math
import types
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import cast

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, LimitMismatchError, Lock
from aiolocks._core.options import Duration, Unset
from aiolocks._core.timing import deadline
from aiolocks._engine.acquire import Acquisition, timed_out
from aiolocks._engine.block import Block
from aiolocks._engine.context import Grantor
from aiolocks._engine.lease import Hold
from aiolocks._engine.must_await import Acquiring
from aiolocks._engine.request import LONGEST_RETRY, Granted, Request
from aiolocks._grantors.replication import ReplicasOption
from aiolocks.testing import After, ScriptedGrantor
from tests.support.answering import Answering, Later
from tests.support.virtual import clock
from tests.unit.engine.leases import END, Around, later, run_by_hand, this_task, until_lost

Answer = After | int | Exception

NEVER = After(math.inf, True)


def undrawn(grantor: ScriptedGrantor) -> set[bytes]:
    """Return the tokens that may hold or wait on the server, since nothing has undone them."""
    return set(grantor.tokens("grant")) - set(grantor.tokens("withdraw"))


def assert_nothing_left(grantor: ScriptedGrantor) -> None:
    assert not undrawn(grantor)
    assert not grantor.context.tokens
    assert not grantor.context.undos.under_way
    assert not grantor.context.holdings.in_use()


async def test_a_stub_takes_timedeltas_as_a_lock_does() -> None:
    grantor = ScriptedGrantor(grants=[After(timedelta(seconds=2), 1)], renewals=[ConnectionError()])
    await until_lost(grantor.hold(ttl=timedelta(seconds=30), timeout=timedelta(minutes=1), max_hold=timedelta(hours=1)))
    assert (clock(), [asked.ttl for asked in grantor.asked]) == (END, [30.0] * len(grantor.asked))
    with pytest.raises(ValueError, match="ttl"):
        await grantor.acquire(ttl=timedelta(0))


@pytest.mark.parametrize("begun", [0, 1])
async def test_a_turn_that_overtakes_the_reply_counts_from_the_first_request(begun: float) -> None:
    """Which may leave at 0.0 of the clock, in simulations for one."""
    await asyncio.sleep(begun)
    grantor = ScriptedGrantor(grants=[After(2, "queued")])
    later(1, grantor.hand_over, 7)
    async with grantor.hold(ttl=30) as lease:
        assert lease.fencing_token == 7
        assert lease.remaining() == pytest.approx(deadline(sent_at=begun, ttl=30) - clock())


# A grant that is old when it is heard of.


@pytest.mark.parametrize(
    ("age", "confirmation", "asked"),
    [(13, 7, 1), (13.69, 7, 1), (13.71, 7, 2), (20, 7, 2), (20, RedisConnectionError(), 2)],
)
async def test_a_turn_is_confirmed_if_under_half_its_ttl_is_left(age: float, confirmation: Answer, asked: int) -> None:
    """A re-check that was on its way longer than that would ask for its old place, and so again for the lease."""
    await asyncio.sleep(1)
    grantor = ScriptedGrantor(grants=["queued", confirmation])
    later(age, grantor.hand_over, 7)
    async with grantor.hold(ttl=30) as lease:
        assert (grantor.times("grant"), len(set(grantor.tokens("grant")))) == ([1, 1 + age][:asked], 1)
        valid_from = 1 if confirmation != 7 else grantor.times("grant")[-1]
        assert lease.remaining() == pytest.approx(deadline(valid_from, ttl=30) - clock())
        assert grantor.requests[-1].turn.done()


@pytest.mark.parametrize(("confirmation", "valid_from"), [(7, 20), (RedisConnectionError(), 0)])
async def test_a_grant_whose_reply_took_over_half_the_ttl_is_confirmed(confirmation: Answer, valid_from: float) -> None:
    grantor = ScriptedGrantor(grants=[After(20, 7), confirmation])
    async with grantor.hold(ttl=30) as lease:
        assert grantor.times("grant") == [0, 20]
        assert lease.remaining() == pytest.approx(deadline(valid_from, ttl=30) - 20)


async def test_a_confirmation_that_is_refused_shows_that_the_lease_is_gone() -> None:
    with pytest.raises(LimitMismatchError):
        await ScriptedGrantor(grants=[After(20, 7), LimitMismatchError("", name="a", permits=2, limit=1)]).acquire()


async def test_a_confirmation_answered_queued_waits_for_the_next_turn() -> None:
    """The lease lapsed meanwhile, so this token stands in line again."""
    await asyncio.sleep(1)
    grantor = ScriptedGrantor(grants=["queued"])
    later(20, grantor.hand_over, 7)
    later(25, grantor.hand_over, 8)
    async with grantor.hold(ttl=30) as lease:
        assert (clock(), lease.fencing_token) == (26, 8)
        assert lease.remaining() == pytest.approx(deadline(sent_at=21, ttl=30) - 26)


async def test_a_confirmation_answered_busy_means_not_acquired() -> None:
    """Who asked once, and heard of the grant when it had lapsed, must not wait for a turn that nobody owes it."""
    grantor = ScriptedGrantor(grants=[After(20, 7), After(10, "busy")])
    assert await asyncio.wait_for(grantor.asking(ttl=30, timeout=0).try_acquire(Lease), 3600) is None
    assert clock() == 30
    assert not grantor.context.tokens


@pytest.mark.parametrize("took", [29, END])
async def test_confirmed_but_nothing_left_is_withdrawn_and_asked_again_with_a_new_token(took: float) -> None:
    """The undo is tried again if it fails."""
    grantor = ScriptedGrantor(grants=[After(took, 7), After(took, 7), 8], withdrawals=[RedisConnectionError(), True])
    async with grantor.hold(ttl=30) as lease:
        first, again, new = grantor.tokens("grant")
        assert first == again != new
        assert (lease.token.encode(), lease.fencing_token) == (new, 8)
        assert grantor.tokens("withdraw") == [first]
        await asyncio.sleep(1)
        assert grantor.tokens("withdraw") == [first] * 2
    assert_nothing_left(grantor)


# Not to be had.


async def test_timeout_without_any_answer_is_redis_own_error_and_is_undone() -> None:
    grantor = ScriptedGrantor(grants=[NEVER], withdrawals=[After(0.5, True)])
    with pytest.raises(RedisTimeoutError, match="stub 'scripted': Redis did not answer within 5 s"):
        async with grantor.hold(timeout=5):
            pytest.fail("not granted")
    assert clock() == 5
    await asyncio.sleep(1)  # nobody waits for an undo that Redis does not hear
    assert_nothing_left(grantor)


@pytest.mark.parametrize(("timeout", "took", "until"), [(5.0, 1, 5), (None, 4, 10), (0, 4, 10), (3600, 4, 10)])
async def test_trouble_of_the_last_attempt_ends_the_asking(timeout: float | None, took: float, until: float) -> None:
    first, last = RedisConnectionError("cut"), RedisConnectionError("refused")
    grantor = ScriptedGrantor(grants=[After(took, first), After(took, last), NEVER])
    with pytest.raises(RedisConnectionError) as caught:
        await grantor.acquire(timeout=timeout)
    assert caught.value is last
    assert clock() == until


async def test_what_never_left_is_asked_again_for_ten_seconds_too() -> None:
    """There was no connection, and so there is no moment at which it was asked first."""
    grantor = Unconnected(ScriptedGrantor())
    with pytest.raises(RedisConnectionError, match="refused"):
        await grantor.asking().acquire(Lease)
    assert (grantor.attempts, clock()) == ([0, 2.5, 5, 7.5], 10)


class Unconnected(Around):
    """A stub that cannot connect, and finds that out after 2.5 seconds."""

    def __init__(self, stub: ScriptedGrantor) -> None:
        super().__init__(stub)
        self.attempts: list[float] = []

    async def grant(self, request: Request) -> Granted:
        self.attempts.append(clock())
        await asyncio.sleep(2.5)
        raise RedisConnectionError("refused")


@pytest.mark.parametrize(("turn", "asked"), [(0.5, 1), (1.5, 2)])
async def test_a_turn_that_comes_while_the_request_is_asked_again_ends_the_asking(turn: float, asked: int) -> None:
    """The answer was lost, but the request had reached Redis, and stood in line."""
    grantor = ScriptedGrantor(grants=[After(1, RedisConnectionError())])
    later(turn, grantor.hand_over, 7)
    async with grantor.hold() as lease:
        assert (clock(), lease.fencing_token) == (asked, 7)
        assert len(grantor.times("grant")) == asked


def test_what_is_busy_is_said_in_the_words_of_what_was_asked_for() -> None:
    request = Request(30.0, 2, wait=True)
    for kind, timeout, says in [
        ("lock", 5.0, "lock 'scraper': not granted within 5 s: held by another holder"),
        ("lock", 0.0, "lock 'scraper': held by another holder"),
        (
            "semaphore",
            0.25,
            "semaphore 'scraper': not granted within 0.25 s: too few permits are free, or it is paused",
        ),
    ]:
        grantor = cast("Grantor", types.SimpleNamespace(kind=kind, name="scraper"))
        error = timed_out(grantor, request, timeout)
        assert (str(error), error.name, error.timeout) == (says, "scraper", timeout)
        assert error.retry_after == 30, "as long as a lease lasts, if nothing better is known"


@pytest.mark.parametrize(("answers", "tries"), [([NEVER], 1), ([ConnectionError(), ConnectionError(), True], 3)])
async def test_the_undo_of_a_failed_acquire_is_awaited_for_a_second(answers: list[Answer], tries: int) -> None:
    grantor = ScriptedGrantor(grants=["queued"], withdrawals=answers)
    with pytest.raises(AcquireTimeoutError):
        await grantor.acquire(timeout=5)
    assert 5 < clock() <= 6
    assert len(grantor.times("withdraw")) == tries
    assert not undrawn(grantor)


async def test_busy_without_waiting_raises_at_once_from_a_block() -> None:
    grantor = ScriptedGrantor(grants=["busy"])
    grantor.retry_after = 12.5
    with pytest.raises(AcquireTimeoutError, match=r"^stub 'scripted': held by another holder$") as caught:
        async with grantor.hold(timeout=0):
            pytest.fail("not granted")
    assert (caught.value.timeout, caught.value.retry_after) == (0, 12.5)
    assert clock() == 0
    assert not grantor.times("withdraw"), "there is nothing to undo"
    await asyncio.sleep(1)
    assert grantor.context.closed


async def test_busy_after_an_attempt_that_may_still_arrive_is_undone() -> None:
    """P7: the first request went out and was not answered. It may reach Redis later, and be granted to nobody."""
    grantor = ScriptedGrantor(grants=[RedisConnectionError(), "busy"], withdrawals=[RedisConnectionError(), True])
    assert await grantor.asking(timeout=0).try_acquire(Lease) is None
    await asyncio.sleep(0.1)
    assert_nothing_left(grantor)
    assert len(grantor.times("withdraw")) == 2


async def test_trouble_is_retried_as_the_client_would_and_then_raised_as_it_is() -> None:
    """And no caller waits for an undo that Redis does not hear."""
    trouble = RedisConnectionError("refused")
    grantor = ScriptedGrantor(grants=[trouble], withdrawals=[After(0.5, True)])
    with pytest.raises(RedisConnectionError) as caught:
        await grantor.acquire()
    assert caught.value is trouble
    assert (clock(), len(grantor.times("grant"))) == (0, 1 + 3)
    assert len(set(grantor.tokens("grant"))) == 1
    await asyncio.sleep(1)
    assert_nothing_left(grantor)


async def test_after_a_cancellation_the_undo_of_what_was_not_answered_yet_is_awaited() -> None:
    grantor = ScriptedGrantor(grants=[NEVER], withdrawals=[After(0.4, True)])
    task = asyncio.create_task(grantor.acquire())
    later(5, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock() == 5.4


# On replicas too.


class Replicated(Around):
    """A stub with replicas, which have what was granted after some *seconds*."""

    def __init__(self, stub: ScriptedGrantor, seconds: float) -> None:
        super().__init__(stub)
        self.seconds = seconds
        self.wanted: list[int] = []

    async def replicate(self, request: Request, replicas: int) -> Granted:
        self.wanted.append(replicas)
        sent_at = clock()
        await asyncio.sleep(self.seconds)
        return Granted(70, sent_at)

    def asking(self, timeout: float | None = None) -> Acquisition:
        asking = super().asking(timeout)
        asking.request.extensions = (ReplicasOption(2),)
        return asking


@pytest.mark.parametrize("timeout", [None, 0.0, 5.0])
async def test_a_lease_that_replicas_must_have_begins_when_they_have_it(timeout: float | None) -> None:
    grantor = Replicated(ScriptedGrantor(grants=[After(1, 7)]), 2)
    lease = await grantor.asking(timeout).acquire(Lease)
    assert (clock(), grantor.wanted) == (3, [2])
    assert lease.fencing_token == 70
    assert lease.remaining() == pytest.approx(deadline(sent_at=1, ttl=30) - 3)
    assert await lease.release()


@pytest.mark.parametrize("timeout", [0.0, 5.0])
async def test_what_is_busy_asks_no_replicas(timeout: float) -> None:
    grantor = Replicated(ScriptedGrantor(grants=["busy"]), 2)
    assert await grantor.asking(timeout).try_acquire(Lease) is None
    assert not grantor.wanted


async def test_timeout_while_replicas_are_waited_for_says_so_though_there_was_a_holder_before() -> None:
    stub = ScriptedGrantor(grants=["queued"])
    later(1, stub.hand_over, 7)
    with pytest.raises(RedisTimeoutError, match="stub 'scripted': not known to be on 2 replicas after 5 s"):
        await Replicated(stub, 60).asking(5.0).acquire(Lease)
    assert clock() == 5
    assert_nothing_left(stub)


async def test_an_acquire_that_is_interrupted_once_granted_stops_no_task_later() -> None:
    def interrupt(state: object) -> Lease:
        raise KeyboardInterrupt

    grantor = ScriptedGrantor()
    with pytest.raises(KeyboardInterrupt):
        await grantor.asking().acquire(interrupt, block=Block(this_task()))
    await asyncio.sleep(60)
    assert_nothing_left(grantor)


# Cancellation.

SCRIPTS: dict[str, tuple[float, Callable[[], ScriptedGrantor]]] = {
    "granted": (0, lambda: ScriptedGrantor()),
    "busy": (0, lambda: ScriptedGrantor(grants=["busy"])),
    "retried": (0, lambda: ScriptedGrantor(grants=[RedisConnectionError(), RedisConnectionError(), 7])),
    "failed": (0, lambda: ScriptedGrantor(grants=[RedisConnectionError()])),
    "queued": (0, lambda: ScriptedGrantor(grants=["queued"])),
    "confirmed": (0, lambda: ScriptedGrantor(grants=["queued", 7])),
    "queued twice": (0, lambda: ScriptedGrantor(grants=["queued", "queued"])),
    "asked again": (3, lambda: ScriptedGrantor(grants=[After(29, 7), After(29, 7), After(7, "queued")])),
    "undone late": (0.01, lambda: ScriptedGrantor(withdrawals=[RedisConnectionError(), RedisConnectionError(), True])),
}
"""Seconds per turn, and what is answered."""


async def pass_turn(grantor: ScriptedGrantor, script: str, seconds: float, turn: int) -> None:
    """Hand over every now and then to who waits, and make it late news where the script wants a confirmation."""
    request = grantor.requests[-1] if grantor.requests else None
    if request is not None and request.valid_from is not None and turn % 3 == 2:
        if script in ("confirmed", "queued twice") and len(grantor.requests) == 1:
            request.valid_from -= 20
        grantor.hand_over(7)
    await asyncio.sleep(seconds)


@pytest.mark.parametrize("timeout", [None, 3600.0])
@pytest.mark.parametrize("by", ["its task", "a scope"])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_cancelling_at_any_await_leaves_nothing_behind(script: str, by: str, timeout: float | None) -> None:
    await asyncio.sleep(100)
    seconds, make = SCRIPTS[script]
    for turns in itertools.count():
        grantor = make()
        scope = anyio.CancelScope()

        async def work(scope: anyio.CancelScope, grantor: ScriptedGrantor) -> None:
            with scope:
                async with grantor.hold(ttl=30, timeout=timeout):
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)

        task = asyncio.create_task(work(scope, grantor))
        for turn in range(turns):
            await pass_turn(grantor, script, seconds, turn)
        finished = task.done()
        if by == "its task":
            task.cancel()
        else:
            scope.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if by == "its task" and not finished:
            assert isinstance(outcome, asyncio.CancelledError)
        elif script not in ("busy", "failed"):
            assert outcome is None
        await asyncio.sleep(0.5)
        if script == "busy":
            assert not grantor.context.tokens  # nothing held or queued that could be undone
        else:
            assert_nothing_left(grantor)
        grantor.session.close()
        if finished:
            break
        assert turns < 50


# How a block ends.


async def in_a_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(math.inf))


async def in_anyio_s_task_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)


async def in_a_timeout() -> None:
    async with asyncio.timeout(7200):
        await asyncio.Event().wait()


@pytest.mark.parametrize("wait", [
    anyio.sleep_forever, in_a_task_group, in_anyio_s_task_group, in_a_timeout, lambda: asyncio.Event().wait(),
    lambda: asyncio.Queue[int]().get(), lambda: asyncio.create_task(asyncio.sleep(7200)),
    lambda: asyncio.gather(asyncio.sleep(7200), asyncio.sleep(7200)),
    lambda: asyncio.wait([asyncio.create_task(asyncio.sleep(7200, "leftover"))], timeout=3600),
    lambda: asyncio.wait_for(asyncio.sleep(7200), 3600), lambda: asyncio.shield(asyncio.sleep(60)),
])  # fmt: skip
async def test_a_loss_stops_the_body_whatever_it_awaits(wait: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor(renewals=[ConnectionError()]).hold(ttl=30):
            await wait()
    assert (clock(), this_task().cancelling()) == (END, 0)
    await asyncio.sleep(7200)  # what was shielded or not awaited any more


async def test_cleanup_in_tasks_that_the_body_gathers_may_be_shielded() -> None:
    grantor = ScriptedGrantor(renewals=[False])
    cleaned: list[float] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.5)
                cleaned.append(clock())

    async def more_work() -> None:
        await asyncio.gather(asyncio.create_task(work()), asyncio.gather(work()))

    with pytest.raises(LeaseLostError):
        async with grantor.hold():
            await asyncio.create_task(more_work())
    await asyncio.sleep(1)
    assert len(cleaned) == 2


async def test_a_loss_stops_what_is_gathered_beside_shielded_work() -> None:
    stopped: list[float] = []

    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(3600)

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(clock())

    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor(renewals=[ConnectionError()]).hold(ttl=30):
            await asyncio.gather(shielded(), work())
    assert stopped == [END]


async def test_a_scope_around_the_block_may_be_shielded_later() -> None:
    """What protects cleanup is a scope within the block."""
    grantor = ScriptedGrantor(renewals=[ConnectionError()])
    with pytest.raises(LeaseLostError), anyio.CancelScope() as scope:
        async with grantor.hold(ttl=30):
            scope.shield = True
            await asyncio.sleep(3600)
    assert clock() == END


@pytest.mark.parametrize("cancelled_too", [False, True])
async def test_what_a_body_had_when_it_was_stopped_needs_no_garbage_collection(cancelled_too: bool) -> None:
    """As what asyncio raises: no exception is kept by a frame in its own traceback."""
    grantor = ScriptedGrantor()

    async def work() -> "weakref.ref[object]":
        held: set[object] = set()
        with contextlib.suppress(LeaseLostError, asyncio.CancelledError):
            async with grantor.hold(ttl=30, renew=False):
                await anyio.sleep_forever()
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        if cancelled_too:
            asyncio.get_running_loop().call_at(END, task.cancel)
        reference = await task
        del task
        await asyncio.sleep(1)
        assert reference() is None
    finally:
        gc.enable()


async def test_the_session_ends_after_its_last_block_though_the_lease_ended_long_before() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold() as lease:
        assert await lease.release()
        await asyncio.sleep(3600)
        assert not grantor.context.closed  # or its books, which know of this block, would be closed with it
    assert len(grantor.times("withdraw")) == 1
    assert_nothing_left(grantor)
    await asyncio.sleep(1)
    assert grantor.context.closed


async def test_a_block_is_left_within_a_second_though_another_ones_books_outlast_its_session_s_rest() -> None:
    """The session lets its connections go when only blocks without a lease are left; a release may be awaited still."""
    grantor = ScriptedGrantor(withdrawals=[True, NEVER])

    async def leave() -> None:
        async with ScriptedGrantor(name="silent", session=grantor.session, withdrawals=[NEVER]).hold():
            pass

    async with grantor.hold() as lease:
        await lease.release()
        await asyncio.sleep(10)
        begun = clock()
        async with asyncio.timeout(20):
            await asyncio.create_task(leave())
        assert clock() - begun <= 1.001


@pytest.mark.parametrize("first", ["the loss", "the cancellation"])
async def test_an_outer_cancellation_at_the_instant_of_a_loss_wins(first: str) -> None:
    seen: list[int] = []

    async def work() -> None:
        try:
            async with ScriptedGrantor().hold(ttl=30, renew=False):
                await anyio.sleep_forever()
        except asyncio.CancelledError:
            seen.append(this_task().cancelling())
            seen.append(this_task().uncancel())
            raise

    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work())
    if first == "the loss":
        await asyncio.sleep(1)  # until the lease has its own timer
    loop.call_at(END, task.cancel, "by others")
    with pytest.raises(asyncio.CancelledError, match=None if first == "the loss" else "by others"):
        await task
    assert (clock(), seen) == (END, [1, 0])


@pytest.mark.parametrize("first", ["the loss", "the timeout"])
async def test_an_outer_timeout_at_the_instant_of_a_loss_stays_a_timeout(first: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout_at(END if first == "the timeout" else None) as limit:
            async with ScriptedGrantor().hold(ttl=30, renew=False):
                if first == "the loss":
                    limit.reschedule(END)
                await anyio.sleep_forever()
    assert (clock(), this_task().cancelling()) == (END, 0)


@pytest.mark.parametrize("raised", [False, True])
async def test_a_cancellation_while_leaving_is_passed_on_when_the_release_is_known(raised: bool) -> None:
    async def work() -> None:
        async with ScriptedGrantor(withdrawals=[After(0.4, True)]).hold():
            if raised:
                raise KeyError

    task = asyncio.create_task(work())
    later(0.1, task.cancel)
    later(0.2, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock() == 0.4


async def test_a_loss_in_an_inner_block_leaves_the_outer_one_alone() -> None:
    outer = ScriptedGrantor(name="outer")
    inner = ScriptedGrantor(name="inner", renewals=[False], session=outer.session)
    async with outer.hold() as lease:
        assert (await until_lost(inner.hold())).name == "inner"
        await asyncio.sleep(100)
        assert lease.held


async def test_a_loss_of_the_outer_block_ends_the_inner_one_and_releases_it() -> None:
    outer = ScriptedGrantor(name="outer", renewals=[False])
    inner = ScriptedGrantor(name="inner", session=outer.session, withdrawals=[After(0.5, True)])
    with pytest.raises(LeaseLostError) as caught:
        async with outer.hold():
            async with inner.hold():
                await anyio.sleep_forever()
    assert (caught.value.name, inner.times("withdraw")[0]) == ("outer", outer.times("renew")[0])
    assert clock() == pytest.approx(inner.times("withdraw")[0] + 0.5)
    await asyncio.sleep(0.1)
    assert_nothing_left(inner)


async def test_of_two_losses_at_one_instant_the_outer_one_leaves() -> None:
    outer = ScriptedGrantor(name="outer")
    inner = ScriptedGrantor(name="inner", session=outer.session)
    with pytest.raises(LeaseLostError) as caught:
        async with outer.hold(renew=False):
            async with inner.hold(renew=False) as lease:
                await anyio.sleep_forever()
    assert caught.value.name == "outer"
    assert lease.lost
    assert clock() == END


async def guarded(grantor: ScriptedGrantor) -> AsyncGenerator[Lease, None]:
    async with grantor.hold() as lease:
        yield lease


async def test_a_coroutine_destroyed_around_a_context_manager_with_a_block_releases_without_awaiting() -> None:
    """The block is in a generator, which may await when it is closed, but not when its coroutine is destroyed."""
    grantor = ScriptedGrantor(withdrawals=[NEVER])
    inside: list[Lease] = []
    context = contextlib.asynccontextmanager(guarded)

    async def work() -> None:
        async with context(grantor) as lease:
            inside.append(lease)
            await asyncio.sleep(0)

    coroutine = work()
    await run_by_hand(coroutine, lambda: bool(inside))
    coroutine.close()  # RuntimeError if it awaits anything
    assert not undrawn(grantor)
    assert not inside[0].held


@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_a_coroutine_destroyed_while_it_waits_is_undone_without_awaiting(timeout: float | None) -> None:
    grantor = ScriptedGrantor(grants=["queued"], withdrawals=[NEVER])

    async def work() -> None:
        await grantor.acquire(timeout=timeout)

    coroutine = work()
    await run_by_hand(coroutine, lambda: bool(grantor.requests) and grantor.requests[0].reached)
    coroutine.close()  # RuntimeError if it awaits anything
    assert not undrawn(grantor)


# The release.


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("hold_for", "bound"), [(5.0, 1.0), (END - 0.5, 0.5)])
async def test_leaving_takes_a_second_or_what_is_left_at_most(
    hold_for: float, bound: float, alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    other = ScriptedGrantor()
    grantor = ScriptedGrantor(withdrawals=[NEVER], session=other.session)
    async with contextlib.nullcontext() if alone else other.hold():  # with which the session goes on
        async with grantor.hold(ttl=30, renew=False) as lease:
            await asyncio.sleep(hold_for)
        assert clock() - hold_for == pytest.approx(bound)
        assert not lease.lost
    (warning,) = caplog.messages
    assert "scripted" in warning
    assert lease.token not in warning


@pytest.mark.parametrize(("grant", "until"), [(7, END), (NEVER, 5 + LONGEST_RETRY)])
async def test_an_undo_is_tried_while_the_lease_or_its_request_lasts(grant: Answer, until: float) -> None:
    """Then nothing is there to be ended, however long its session goes on."""
    other = ScriptedGrantor()
    grantor = ScriptedGrantor(grants=[grant], withdrawals=[RedisConnectionError("refused")], session=other.session)
    async with other.hold():
        with contextlib.suppress(RedisTimeoutError):
            async with grantor.hold(ttl=30, timeout=5):
                pass
        await asyncio.sleep(3600)
        assert until - 1 <= grantor.times("withdraw")[-1] < until
        assert not grantor.context.undos.under_way


async def test_nothing_there_after_an_ambiguous_release_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    """P10: the attempt whose answer was lost may have ended it."""
    grantor = ScriptedGrantor(withdrawals=[ConnectionError(), False])
    async with grantor.hold():
        pass
    assert len(grantor.times("withdraw")) == 2
    assert not caplog.messages


async def test_no_renewal_leaves_once_the_release_has() -> None:
    grantor = ScriptedGrantor(withdrawals=[After(0.9, True)])
    async with grantor.hold(ttl=0.3):
        await asyncio.sleep(10)
    await asyncio.sleep(10)
    verbs = [asked.verb for asked in grantor.asked]
    assert (verbs[-1], verbs.count("withdraw")) == ("withdraw", 1)
    assert verbs.count("renew") > 80


async def test_a_hold_that_is_being_entered_refuses_a_second_block() -> None:
    grantor = ScriptedGrantor(grants=["queued"])
    hold = grantor.hold()
    later(5, grantor.hand_over, 7)

    async def enter_too() -> None:
        with pytest.raises(RuntimeError, match="in use"):
            async with hold:
                pytest.fail("entered twice")

    other = asyncio.create_task(enter_too())  # begins once this task waits
    async with hold as lease:
        assert clock() == 5
        assert other.done()
        assert lease.fencing_token == 7
    await other
    assert len(grantor.times("grant")) == 1


@pytest.mark.parametrize("timeout", [5.0, None])
async def test_a_hold_whose_entry_failed_or_was_cancelled_can_be_entered_again(timeout: float | None) -> None:
    grantor = ScriptedGrantor(grants=["queued", 7])
    hold = grantor.hold(timeout=timeout)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(6), hold:
            pytest.fail("not granted")
    with pytest.raises(RuntimeError, match="left already"):
        await hold.__aexit__(None, None, None)
    async with hold as lease:
        assert lease.fencing_token == 7
    assert not lease.held
    assert_nothing_left(grantor)


async def test_of_two_entries_of_one_hold_that_begin_together_one_is_refused() -> None:
    grantor = ScriptedGrantor()
    hold = grantor.hold()
    first, second = hold.__aenter__(), hold.__aenter__()
    lease = await first
    with pytest.raises(RuntimeError, match="in use"):
        await second
    await hold.__aexit__(None, None, None)
    assert not lease.held
    assert len(grantor.times("grant")) == 1


class Primitive:
    """What `Acquiring` is given by a primitive, by a stub."""

    def __init__(self, grantor: ScriptedGrantor) -> None:
        self.grantor = grantor
        self.asked: list[tuple[str, object, int]] = []

    async def _acquire(self, timeout: Duration | Unset | None, permits: int) -> Lease:
        self.asked.append(("by hand", timeout, permits))
        return await self.grantor.acquire()

    def _hold(self, timeout: Duration | Unset | None, permits: int) -> Hold:
        self.asked.append(("a block", timeout, permits))
        return self.grantor.hold()

    def acquiring(self, timeout: Duration | Unset | None, permits: int) -> Acquiring:
        return Acquiring(self, self._acquire, self._hold, timeout, permits)


async def test_what_acquire_returns_is_a_coroutine_or_a_block_and_asks_for_what_it_was_given() -> None:
    primitive = Primitive(ScriptedGrantor())
    primitive.acquiring(None, 1).close()
    assert not primitive.asked
    lease = await primitive.acquiring(5.0, 3)
    assert await lease.release()
    async with primitive.acquiring(None, 2) as lease:
        lease.check()
    assert not lease.held
    assert primitive.asked == [("by hand", 5.0, 3), ("a block", None, 2)]
    gc.collect()  # a coroutine that was not awaited would say so, which is an error here
    assert_nothing_left(primitive.grantor)


async def test_the_block_of_an_acquire_is_one_at_a_time_and_may_be_entered_again() -> None:
    primitive = Primitive(ScriptedGrantor())
    block = primitive.acquiring(None, 1)
    with pytest.raises(RuntimeError, match="not entered"):
        await block.__aexit__(None, None, None)
    async with block:
        with pytest.raises(RuntimeError, match="in use"):
            async with block:
                pytest.fail("entered twice")
    async with block as lease:
        assert lease.held
    with pytest.raises(RuntimeError, match="left already"):
        await block.__aexit__(None, None, None)


async def test_an_acquire_that_is_too_late_names_the_holder_if_redis_says_so_within_a_second() -> None:
    """It is asked 50 ms before the end."""
    row = [0, b"token", b"1795713236772783", 5_000, 1]
    says = {
        "lock_grant": [b"queued", 7, 20_000, 5, 1, 0], "lock_recheck": [1, 20_000, 5, 0, [7], 0],
        "SUBSCRIBE": [b"subscribe", b"", 1], "lock_holders": Later(0.03, row),
    }  # fmt: skip
    server = Answering(lambda asked: says.get(asked.what, 1))
    with pytest.raises(AcquireTimeoutError, match="held by") as caught:
        await Lock(server.client(), "orders").acquire(timeout=2)
    assert clock() < 2.1
    assert server.times("lock_holders") == [pytest.approx(1.95)]
    assert [holder.fencing_token for holder in caught.value.holders or ()] == [1795713236772783]
    await server.close()
