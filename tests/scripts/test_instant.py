"""What falls into one instant of the server's clock, and what a lease is at the very millisecond it ends.

The clock is that of the server in memory, and stands still but where a test moves it.
"""

import time
from collections.abc import Callable

import pytest
from fakeredis import FakeRedis, FakeServer
from redis import Redis

from aiolocks._redis.scripts import load
from aiolocks.testing import _clock
from tests.scripts.calls import TTL, Busy, Granted, Scripts, token
from tests.scripts.states import fence_of, holders, last_fence

_NOON_MS = 1_763_726_400_000


class Clock:
    """Reads µs as seconds, as `time.time` does."""

    def __init__(self) -> None:
        self.now_us = 1_000 * _NOON_MS

    def time(self) -> float:
        return self.now_us / 1_000_000

    def pass_by(self, ms: int) -> None:
        self.now_us += 1_000 * ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", clock.time)
    monkeypatch.setattr(_clock, "_moved", 0.0)  # by tests before it
    return clock


@pytest.fixture
def backend(clock: Clock) -> Redis:
    """The server in memory, by that clock."""
    return FakeRedis(server=FakeServer(version=(7,)))


@pytest.fixture(params=["semaphore", "rwlock"])
def scored(request: pytest.FixtureRequest, backend: Redis) -> Scripts:
    """What keeps the end of each lease beside its holder."""
    return Scripts(backend, request.param, limit=1)


@pytest.mark.parametrize("micros", [0, 7, 42, 100_000, 999_999])
def test_a_token_is_the_clocks_microsecond_of_few_digits_too(exclusive: Scripts, clock: Clock, micros: int) -> None:
    clock.now_us += micros
    assert exclusive.granted("ann").fence == clock.now_us
    assert last_fence(exclusive) == b"%d" % clock.now_us


def test_grants_of_one_microsecond_have_tokens_that_grow(exclusive: Scripts) -> None:
    """P8."""
    fences = []
    for who in ("ann", "ben", "cat"):
        fences.append(exclusive.granted(who).fence)
        assert fence_of(exclusive, who) == fences[-1]
        exclusive.release(who)
    assert fences == [fences[0], fences[0] + 1, fences[0] + 2]


def _free(scripts: Scripts) -> bool:
    return isinstance(scripts.grant("zoe", wait=False), Granted)


_LIVES: dict[str, Callable[[Scripts], bool]] = {
    "renew": lambda scripts: scripts.renew("ann"), "release": lambda scripts: scripts.release("ann").ended,
    "re-check": lambda scripts: scripts.recheck("ann").answers[0] < 0,
    "ask again": lambda scripts: scripts.granted("ann").fence == 1_000 * _NOON_MS,
    "ask for it": lambda scripts: not _free(scripts), "count": lambda scripts: scripts.statistics().holders == 1,
}  # fmt: skip


@pytest.mark.parametrize("verb", _LIVES)
def test_every_verb_ends_a_lease_at_the_same_millisecond(scored: Scripts, clock: Clock, verb: str) -> None:
    """Or one would hold by a verb what another has by the next."""
    for left_ms in (1, 0):
        scored.redis.flushall()
        clock.now_us = 1_000 * _NOON_MS
        scored.granted("ann")
        clock.pass_by(TTL - left_ms)
        assert _LIVES[verb](scored) == (left_ms > 0)


def test_what_is_guarded_is_run_until_that_millisecond(scored: Scripts, clock: Clock) -> None:
    def ran(number: int) -> bool:
        words = [number, 60_000, 1, token("ann"), 1, "PING"]
        keys = ["record", scored.keys.base, scored.key("meta")]
        answer = scored.redis.eval(load("semaphore/guard").source, len(keys), *keys, *words)
        return isinstance(answer, bytes)

    scored.granted("ann")
    clock.pass_by(TTL - 1)
    assert ran(1)
    clock.pass_by(1)
    assert not ran(2)


def test_the_set_of_holders_is_there_as_long_as_its_last_lease(semaphore: Scripts, clock: Clock) -> None:
    """Grants extend the life of the set from time to time only."""
    semaphore.resize(100)
    ends: dict[str, int] = {}
    for number in range(40):
        ttl_ms = TTL if number % 3 else TTL // 2
        semaphore.granted(f"w{number}w", ttl_ms=ttl_ms)
        ends[f"w{number}w"] = clock.now_us + 1_000 * ttl_ms
        clock.pass_by(1_111)
        live = {who for who, end in ends.items() if end > clock.now_us}
        assert {who for who, left in holders(semaphore).items() if left > 0} == live


def test_the_hash_outlives_the_leases_of_a_busy_day(semaphore: Scripts, clock: Clock) -> None:
    """Where nobody waits, grants keep it alive once a minute."""
    hour_ms, fence = 3_600_000, 0
    for number in range(60):
        fence = semaphore.granted("ann").fence
        semaphore.release("ann")
        clock.pass_by(hour_ms if number % 2 else 100)
    clock.pass_by(22 * hour_ms)
    assert semaphore.statistics().fence == fence
    assert semaphore.statistics().limit == 3


def test_a_clock_that_stepped_back_by_a_moment_shortens_no_lease(scored: Scripts, clock: Clock) -> None:
    """Not below what its holder was promised: it has that long, by its own clock."""
    scored.granted("ann", ttl_ms=TTL)
    clock.pass_by(-10_000)
    assert isinstance(scored.grant("ben", wait=False), Busy)
    assert holders(scored) == {"ann": TTL}
