"""An acquire cancelled at any moment, by a task or by a scope, leaves nothing held, queued or on its way."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import retrying
from tests.faults.support.residue import wait_until_only_residue
from tests.support import seeds
from tests.support.inside import State, state_of
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

DELAY = 0.2
"""Seconds that requests through the proxy are under way."""

ACQUIRES = 200
TRIES = 20
"""How often an acquire that outran its cancellation is made again."""

_ttls_ms = itertools.count(5_000)
"""Each acquire has a TTL of its own, by which its request is found in the engine's books."""


@dataclass(frozen=True)
class Plan:
    """One acquire, and the state in which it is to be cancelled."""

    number: int
    state: State
    delayed: bool
    kind: type[Lock] | type[Semaphore]
    by: Literal["task", "scope"]

    @property
    def name(self) -> str:
        return f"cancelled-{self.number}"

    def make(self, client: Redis, ttl: float = 5.0) -> Lock | Semaphore:
        return Lock(client, self.name, ttl=ttl) if self.kind is Lock else Semaphore(client, self.name, 1, ttl=ttl)


def plans() -> list[Plan]:
    made = []
    for number in range(ACQUIRES):
        state = list(State)[number % 4]
        # A scope never cancels a task whose answer is there; see the second test.
        by: Literal["task", "scope"] = "scope" if number % 32 >= 16 and state is not State.GRANTED_UNREAD else "task"
        made.append(Plan(number, state, number % 8 >= 4, Lock if number % 16 >= 8 else Semaphore, by))
    return made


class Acquiring:
    """An acquire on its way, and the means to cancel it."""

    def __init__(self, plan: Plan, client: Redis) -> None:
        self._client = client
        self._ttl_ms = next(_ttls_ms)
        self._scope = anyio.CancelScope()
        self._acquirable = plan.make(client, self._ttl_ms / 1000)
        self.task = asyncio.create_task(self._in_scope() if plan.by == "scope" else self._acquire())
        self.cancel: Callable[[], object] = self._scope.cancel if plan.by == "scope" else self.task.cancel

    @property
    def state(self) -> State:
        return state_of(self._client, self._ttl_ms)

    async def reach(self, state: State) -> None:
        """Return in the very turn of the loop in which the state is reached, before the acquiring task runs."""
        while self.state is not state and not self.task.done():
            await asyncio.sleep(0)

    async def _acquire(self) -> Lease | None:
        return await self._acquirable.acquire()

    async def _in_scope(self) -> Lease | None:
        with self._scope:
            return await self._acquirable.acquire()
        return None


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def moment_of(
    plan: Plan, acquiring: Acquiring, dice: random.Random, holding: Lease | None, stack: AsyncExitStack
) -> None:
    """Wait until the acquire is to be cancelled."""
    match plan.state:
        case State.BEFORE_SENDING if plan.delayed:
            await asyncio.sleep(dice.uniform(0, DELAY))
        case State.BEFORE_SENDING:
            await turns(dice.randrange(4))
        case State.IN_FLIGHT if plan.delayed:
            await asyncio.sleep(dice.uniform(0, 0.9 * DELAY))
        case State.IN_FLIGHT:
            await turns(dice.randint(1, 2))
        case State.QUEUED:
            await acquiring.reach(State.QUEUED)
            await asyncio.sleep(dice.uniform(0, 0.4))
        case State.GRANTED_UNREAD:
            if holding is not None:
                await acquiring.reach(State.QUEUED)
                await asyncio.sleep(dice.uniform(0, 0.3))
                stack.push_async_callback(asyncio.wait, {asyncio.create_task(holding.release())})
            await acquiring.reach(State.GRANTED_UNREAD)


async def cancelled_once(
    plan: Plan, warm: Redis, new: Callable[[], Redis], holder: Redis, dice: random.Random
) -> State | None:
    """Acquire and cancel; return the state in which the cancellation hit, or None if the acquire outran it."""
    async with AsyncExitStack() as stack:
        client = warm
        if plan.state is State.BEFORE_SENDING:
            client = await stack.enter_async_context(new())
        holding: Lease | None = None
        if plan.state is State.QUEUED or (plan.state is State.GRANTED_UNREAD and dice.random() < 0.5):
            holding = await plan.make(holder).acquire()
            stack.push_async_callback(holding.release)
        acquiring = Acquiring(plan, client)
        await moment_of(plan, acquiring, dice, holding, stack)
        state = acquiring.state
        if not acquiring.task.done():
            acquiring.cancel()
            await asyncio.wait((acquiring.task,))
        lease = None if acquiring.task.cancelled() else acquiring.task.result()
        if lease is not None:
            await lease.release()
            return None
        if plan.state is State.QUEUED:
            assert (await plan.make(holder).statistics()).waiting == 0, "it has left the queue, not only lost interest"
        return state


async def test_acquires_cancelled_at_random_moments_leave_only_residue(
    redis: Redis, server: RedisServer, proxy: FaultProxy
) -> None:
    """F2, F3: before it is sent, in flight, queued, granted but unread; by the task and by a scope."""
    seed = seeds.seed_of_run()
    dice = random.Random(seed)
    proxy.delay_requests = DELAY
    counts: Counter[State] = Counter()
    outrun = 0

    def new_direct() -> Redis:
        return Redis(unix_socket_path=server.socket_path)

    def new_delayed() -> Redis:
        return retrying(proxy)

    async with new_direct() as direct, new_delayed() as delayed:

        async def carry_out(plan: Plan) -> None:
            nonlocal outrun
            warm, new = (delayed, new_delayed) if plan.delayed else (direct, new_direct)
            own_dice = random.Random(dice.random())
            for _ in range(TRIES):
                state = await cancelled_once(plan, warm, new, redis, own_dice)
                if state is not None:
                    counts[state] += 1
                    return
                outrun += 1
            raise AssertionError(f"{plan} outran its cancellation {TRIES} times")

        async with Lock(direct, "keeps the session"), Lock(delayed, "keeps the other session"):
            for state in State:
                await asyncio.gather(*(carry_out(plan) for plan in plans() if plan.state is state))

        took = await wait_until_only_residue(redis, within=2.0)
    states = ", ".join(f"{counts[state]} {state.value}" for state in State)
    print(f"cancelled: {states}; {outrun} outran it and were made again; only residue after {took:.3f} s")
    assert counts.total() == ACQUIRES
    assert min(counts[state] for state in State) >= 20

    slowest = 0.0
    async with new_direct() as fresh, measured_lag() as lag:
        await fresh.ping()
        for plan in plans():
            begun = time.monotonic()
            lease = await plan.make(fresh).acquire(timeout=2)
            slowest = max(slowest, time.monotonic() - begun)
            await lease.release()
    print(f"a fresh client then acquired each of them within {slowest:.3f} s")
    assert_within(slowest, SLACK * 0.15 + lag.worst)


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_block_whose_scope_ends_in_the_turn_of_its_grant_never_works_and_leaves_nothing(
    redis: Redis, redis_url: str, kind: type[Lock] | type[Semaphore]
) -> None:
    """F3: a scope does not cancel a task whose answer is there, so the block is entered; its first await ends it."""
    entered = worked = 0
    async with Redis.from_url(redis_url) as client, Lock(client, "keeps the session"):
        for number in range(40):
            plan = Plan(number, State.GRANTED_UNREAD, False, kind, "scope")
            scope = anyio.CancelScope()
            ttl_ms = next(_ttls_ms)
            acquirable = plan.make(client, ttl_ms / 1000)

            async def block(scope: anyio.CancelScope = scope, acquirable: Lock | Semaphore = acquirable) -> None:
                nonlocal entered, worked
                with scope:
                    async with acquirable:
                        entered += 1
                        await asyncio.sleep(1)
                        worked += 1

            holding = await plan.make(redis).acquire() if number % 2 else None
            task = asyncio.create_task(block())
            if holding is not None:
                await asyncio.sleep(0.002)
                await holding.release()
            while not task.done() and state_of(client, ttl_ms) is not State.GRANTED_UNREAD:
                await asyncio.sleep(0)
            scope.cancel()
            await task
    print(f"{kind.__name__}: {entered} of 40 blocks entered, {worked} went on")
    await wait_until_only_residue(redis, within=2.0)
    assert worked == 0


async def test_an_acquire_that_reaches_redis_after_its_undo_is_granted_to_no_caller(
    redis: Redis, proxy: FaultProxy
) -> None:
    """F2: the undo overtakes it, and leaves a tombstone for it."""
    kinds: list[Callable[[Redis, str], Lock | Semaphore]] = [
        lambda client, name: Lock(client, name, ttl=5),
        lambda client, name: Semaphore(client, name, 1, ttl=5),
    ]
    async with retrying(proxy) as client, Lock(client, "keeps the session", ttl=5):
        proxy.delay_requests = 0.5
        tasks = [asyncio.create_task(make(client, f"late-{n}").acquire()) for n in range(10) for make in kinds]
        await asyncio.sleep(0.05)
        sent = time.monotonic()
        proxy.delay_requests = 0.0
        proxy.cut_all()  # what is under way still arrives, after what the next connection carries
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        print(f"undone {time.monotonic() - sent:.3f} s after they were sent")
        assert all(task.cancelled() for task in tasks)
        await asyncio.sleep(0.6)
        held = [key for key in await redis.keys("*late-*") if b":t:" not in key and b":meta" not in key]
    assert held == []
    assert len([key async for key in redis.scan_iter("*late-*:t:*")]) == len(tasks)
