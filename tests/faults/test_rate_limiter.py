"""Three processes of forty callers start as fast as a `RateLimiter` lets them, under faults: no window has too many."""

import random
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean

import pytest
import redis as redis_sync

from tests.faults.support.server_clock import ServerClock
from tests.support import seeds
from tests.support.lateness import SLACK, TooLateError
from tests.support.servers import RedisServer
from tests.support.workers import Worker, spawn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PROCESSES, CALLERS = 3, 40

CALLER = """
import asyncio, os, struct, sys, time
from redis.asyncio import Redis
from redis.exceptions import RedisError
from aiolocks import RateLimiter

async def main(url, log, limit, per, callers):
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with Redis.from_url(url) as redis:
        limiter = RateLimiter(redis, "api", int(limit), per=float(per))
        async def work():
            while True:
                try:
                    await limiter.acquire()
                except RedisError:
                    continue
                os.write(file, struct.pack("d", time.monotonic()))
        print("up", flush=True)
        await asyncio.gather(*(work() for _ in range(int(callers))))

asyncio.run(main(*sys.argv[1:]))
"""


def starts_of(log: Path) -> list[float]:
    written = log.read_bytes()
    return sorted(start for (start,) in struct.iter_unpack("d", written[: len(written) // 8 * 8]))


def run(stack: ExitStack, url: str, log: Path, limit: int, per: float) -> list[Worker]:
    command = ("-c", CALLER, url, str(log), str(limit), str(per), str(CALLERS))
    workers = [stack.enter_context(spawn(*command)) for _ in range(PROCESSES)]
    for worker in workers:
        assert worker.line() == "up"
    return workers


def distances(starts: Sequence[float], limit: int) -> list[float]:
    """Return how long it takes from each start to the one that comes *limit* starts later."""
    return [late - early for early, late in zip(starts, starts[limit:], strict=False)]


PAIRS = [(5, 0.1), (50, 0.2), (20, 1.0), (500, 1.0), (100, 2.0)]
each_pair = pytest.mark.parametrize(("limit", "per"), PAIRS)


@each_pair
def test_no_window_has_more_starts_than_the_limit_under_faults(
    clock: ServerClock, servers: Callable[..., RedisServer], tmp_path: Path, limit: int, per: float
) -> None:
    """A process is killed, another stopped, scripts are flushed, wake-ups cut, and the server's clock steps back."""
    dice, log = random.Random(seeds.seed_of_run()), tmp_path / "log"
    server = servers(environment=clock.environment)
    with ExitStack() as stack, redis_sync.Redis.from_url(server.url) as operator:
        killed, stopped, _ = run(stack, server.url, log, limit, per)

        def pause() -> None:
            time.sleep(dice.uniform(0.3, 0.8) * max(per, 0.5))

        pause()
        operator.script_flush()
        pause()
        killed.kill()
        pause()
        operator.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        pause()
        stopped.stop()
        time.sleep(1.5 * max(per, 0.5))
        stopped.go_on()
        pause()
        clock.step(-5.0)
        time.sleep(2 * per + 1)
        before = len(starts_of(log))
        time.sleep(2 * per)
        if len(starts_of(log)) == before:
            raise TooLateError(f"no start in {2 * per:g} s")
    starts = starts_of(log)
    closest = min(distances(starts, limit))
    print(f"{len(starts)} starts of {limit} per {per:g} s; closest: {closest - per:+.4f} s")
    assert closest >= per


@each_pair
def test_at_full_demand_nearly_all_starts_are_used(redis_url: str, tmp_path: Path, limit: int, per: float) -> None:
    """And with one start less allowed, windows have too many: the limit is reached."""
    log = tmp_path / "log"
    with ExitStack() as stack:
        run(stack, redis_url, log, limit, per)
        time.sleep(max(6 * per, 3.0))
    starts = starts_of(log)
    assert min(distances(starts, limit)) >= per
    assert min(distances(starts, limit - 1)) < per
    pace = per / mean(distances(starts, limit)[limit:])  # by then all processes ask
    print(f"{limit} per {per:g} s: {100 * pace:.1f} % of the limit")
    if 1 - pace > (0.02 if per >= 1 else 0.1) * SLACK:
        raise TooLateError(f"{100 * pace:.1f} % of the limit")
