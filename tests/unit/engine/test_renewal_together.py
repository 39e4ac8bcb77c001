"""Renewal of many leases by one request, in virtual time: who goes along, and what becomes of each."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from aiolocks import Lease, LeaseLostError
from aiolocks._core.answers import NotNowError
from aiolocks._core.timing import deadline
from aiolocks._engine.lease import state_of
from aiolocks._engine.renewal import Watchdog
from aiolocks._engine.request import Request
from aiolocks._redis.endpoints import Pipelines
from aiolocks.testing import After, ScriptedGrantor
from tests.support.inside import block_loop
from tests.support.virtual import clock

TTL = 30.0
REFUSED = ResponseError("CROSSSLOT Keys in request don't hash to the same slot")

Tell = Callable[[Sequence[int] | Exception], None]


class Batches:
    """A stub: it answers each request for many after *takes*, with 1 for each name unless it is *gone*."""

    def __init__(self, most: int = 100, takes: float = 0.0) -> None:
        self.most = most
        self.takes = takes
        self.refusal: Exception | None = None
        self.gone: set[str] = set()
        self.sent: list[tuple[float, list[str]]] = []
        self.threads: set[Pipelines | None] = set()

    def renew(self, leases: Sequence[tuple[Any, Request]], tell: Tell, thread: Pipelines | None = None) -> None:
        names = [grantor.name for grantor, _ in leases]
        self.sent.append((clock(), names))
        self.threads.add(thread)
        answers = [0 if name in self.gone else 1 for name in names] if self.refusal is None else self.refusal
        asyncio.get_running_loop().call_later(self.takes, tell, answers)

    @property
    def names(self) -> list[str]:
        return [name for _, names in self.sent for name in names]

    async def first(self) -> tuple[float, list[str]]:
        """Wait for the first request for several leases, and return it."""
        while True:
            for sent_at, names in self.sent:
                if len(names) > 1:
                    return sent_at, names
            await asyncio.sleep(0.001)


def grantors(batches: Batches | None, count: int, **options: Any) -> list[ScriptedGrantor]:
    first = ScriptedGrantor(name="0", **options)
    rest = [ScriptedGrantor(name=str(number), session=first.session, **options) for number in range(1, count)]
    for grantor in (first, *rest):
        grantor.together = batches
    return [first, *rest]


async def take_all(grantors: Sequence[ScriptedGrantor], **options: Any) -> list[Lease]:
    return [await grantor.acquire(ttl=TTL, on_lost="flag", **options) for grantor in grantors]


@asynccontextmanager
async def holding(
    batches: Batches | None, count: int = 60, **options: Any
) -> AsyncIterator[tuple[list[ScriptedGrantor], list[Lease]]]:
    """Hold so many leases that *batches* renews; at the end those are released that are held still."""
    all_of_them = grantors(batches, count, **options)
    leases = await take_all(all_of_them)
    yield all_of_them, leases
    await release_all([lease for lease in leases if lease.held])


def alone(grantors: Sequence[ScriptedGrantor]) -> list[str]:
    return [grantor.name for grantor in grantors for _ in grantor.times("renew")]


async def release_all(leases: Sequence[Lease]) -> None:
    for lease in leases:
        await lease.release()


async def test_what_is_due_at_the_same_time_is_asked_for_by_one_request_and_all_live_on() -> None:
    batches = Batches()
    async with holding(batches) as (grantors, leases):
        await asyncio.sleep(3600)
        assert all(lease.held for lease in leases)
        sizes = [len(names) for _, names in batches.sent]
        assert sum(sizes) / len(sizes) > 3
        assert len(grantors[0].session.watchdog._heap) <= 60 + 40, "what was answered does not pile up"


async def test_a_lease_that_is_due_alone_is_renewed_alone() -> None:
    batches = Batches()
    (one,) = grantors(batches, 1)
    async with one.hold(ttl=TTL):
        await asyncio.sleep(3600)
    assert not batches.sent
    assert len(one.times("renew")) > 300


async def test_no_request_is_for_more_than_its_grantors_allow() -> None:
    batches = Batches(most=7)
    async with holding(batches, 200):
        block_loop(11)  # so that all are overdue
        await asyncio.sleep(0.1)
        assert sorted(batches.names, key=int) == [str(number) for number in range(200)]
        assert max(len(names) for _, names in batches.sent) == 7


async def test_leases_of_different_kinds_and_of_no_kind_are_renewed_apart() -> None:
    locks, semaphores = Batches(), Batches()
    async with holding(None, 90) as (mixed, leases):
        for number, grantor in enumerate(mixed):
            grantor.together = [locks, semaphores, None][number % 3]
        await asyncio.sleep(300)
        assert all(lease.held for lease in leases)
        assert ({int(name) % 3 for name in locks.names}, {int(name) % 3 for name in semaphores.names}) == ({0}, {1})
        assert {name for name in alone(mixed) if int(name) % 3 == 2} == {str(number) for number in range(2, 90, 3)}


async def test_each_lease_renewed_together_counts_from_when_their_request_was_sent() -> None:
    batches = Batches(takes=5.0)
    async with holding(batches) as (_, leases):
        sent_at, names = await batches.first()
        await asyncio.sleep(5.1)
        for name in names:
            assert clock() + leases[int(name)].remaining() == pytest.approx(deadline(sent_at, TTL))


async def test_what_was_not_renewed_along_with_the_others_is_asked_for_at_once_and_is_lost_alone() -> None:
    batches = Batches()
    async with holding(batches) as (grantors, leases):
        batches.gone = {"7", "8"}
        grantors[7]._renewals = [False]
        grantors[8]._renewals = [True]
        await asyncio.sleep(12)
        (asked_at,) = grantors[7].times("renew")
        assert asked_at in [at for at, names in batches.sent if "7" in names]
        for _ in range(2):
            assert [number for number, lease in enumerate(leases) if lease.lost] == [7]
            await asyncio.sleep(3600)
        assert set(alone(grantors)) >= {"7", "8"}


async def test_a_lease_whose_renewal_was_repeated_counts_from_the_repeated_request() -> None:
    batches = Batches(takes=3.0)
    batches.gone = {"7"}
    async with holding(batches) as (grantors, leases):
        while not grantors[7].times("renew"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        (asked_at,) = grantors[7].times("renew")
        assert clock() + leases[7].remaining() == pytest.approx(deadline(asked_at, TTL))


async def test_after_a_refusal_of_the_whole_each_is_asked_for_at_once_and_for_a_while_only_so() -> None:
    batches = Batches()
    batches.refusal = REFUSED
    async with holding(batches) as (grantors, leases):
        refused_at, names = await batches.first()
        assert [grantors[int(name)].times("renew") for name in names] == [[refused_at]] * len(names)
        requests = len(batches.sent)
        await asyncio.sleep(59)
        assert len(batches.sent) == requests
        batches.refusal = None
        await asyncio.sleep(10)
        assert len(batches.sent) > requests
        assert all(lease.held for lease in leases)


@pytest.mark.parametrize("trouble", [RedisConnectionError(), ReadOnlyError(), NotNowError("BUSY"), TimeoutError()])
async def test_after_a_lost_request_each_is_tried_again_until_its_deadline(trouble: Exception) -> None:
    batches = Batches()
    batches.refusal = trouble
    async with holding(batches, renewals=[trouble]) as (grantors, leases):
        await asyncio.sleep(deadline(0, TTL) - 0.01)
        assert all(lease.held for lease in leases)
        assert len(batches.names) + len(alone(grantors)) > 60 * 15
        await asyncio.sleep(0.011)
        assert all(lease.lost for lease in leases)
        assert all(state_of(lease).over for lease in leases), "and that was noted without being asked"


async def test_without_an_answer_each_body_is_stopped_at_its_own_deadline() -> None:
    """The request is for leases that began at different times."""
    batches = Batches(takes=1e6)
    ends: list[float] = []
    stopped: list[float] = []

    async def work(grantor: ScriptedGrantor) -> None:
        with pytest.raises(LeaseLostError):
            async with grantor.hold(ttl=TTL) as lease:
                ends.append(clock() + lease.remaining())
                await asyncio.sleep(1000)
        stopped.append(clock())

    async with asyncio.TaskGroup() as tasks:
        for grantor in grantors(batches, 40, renewals=[After(float("inf"), True)]):
            tasks.create_task(work(grantor))
            await asyncio.sleep(0.02)
    assert any(len(names) > 1 for _, names in batches.sent)
    assert stopped == pytest.approx(ends, abs=1e-6)


async def test_a_lease_that_is_released_meanwhile_is_asked_for_no_more_and_not_lost() -> None:
    """P11: neither the answer to the request for many nor what follows it has to do with that one."""
    batches = Batches(takes=5.0)
    batches.gone = {str(number) for number in range(60)}
    async with holding(batches) as (grantors, leases):
        _, names = await batches.first()
        released, other = int(names[0]), int(names[1])
        assert await leases[released].release()
        await asyncio.sleep(6)
        assert not grantors[released].times("renew")
        assert grantors[other].times("renew")
        assert not leases[released].lost


async def test_a_late_answer_revives_none() -> None:
    async with holding(Batches(takes=25.0), 40, renewals=[After(25, True)]) as (_, leases):
        await asyncio.sleep(deadline(0, TTL) + 0.001)
        assert all(lease.lost for lease in leases)
        await asyncio.sleep(20)
        assert all(lease.lost and not lease.held for lease in leases)


class Raising(Batches):
    def renew(self, leases: Sequence[tuple[Any, Request]], tell: Tell, thread: Pipelines | None = None) -> None:
        super().renew(leases, lambda _: None, thread)
        if len(self.sent) < 3:
            raise RuntimeError("a defect")
        tell([1] * len(leases))


async def test_a_request_that_raises_is_logged_and_all_of_it_soon_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    batches = Raising()
    async with holding(batches) as (_, leases):
        await asyncio.sleep(3600)
        assert all(lease.held for lease in leases)
    assert "renewing failed" in caplog.text
    assert len(caplog.records) == sum(len(names) for _, names in batches.sent[:2])


async def test_after_max_hold_one_runs_out_and_the_others_are_renewed() -> None:
    batches = Batches()
    all_of_them = grantors(batches, 60)
    leases = await take_all(all_of_them[:30], max_hold=100.0)
    leases += await take_all(all_of_them[30:])
    await asyncio.sleep(3600)
    assert [lease.lost for lease in leases] == [True] * 30 + [False] * 30
    assert not [at for at, names in batches.sent if at > 100 and any(int(name) < 30 for name in names)]
    await release_all(leases[30:])


async def test_a_thread_s_request_goes_over_its_own_pipeline() -> None:
    batches = Batches()
    all_of_them = grantors(batches, 60)
    leases = await take_all(all_of_them, renew=False)
    loop = asyncio.get_running_loop()
    thread = Pipelines(loop, clock, lambda: None, lambda: None)
    watchdog = Watchdog(loop, clock, thread, lambda longest, now: False)
    for lease in leases:
        state_of(lease).renewer = watchdog
        watchdog.add(state_of(lease), clock())
    await asyncio.sleep(100)
    assert all(lease.held for lease in leases)
    assert batches.threads == {thread}
    watchdog.close()
    await release_all(leases)
