"""After `os.fork()` a lease belongs to the parent alone: the child neither keeps it alive nor ends it."""

import time
from pathlib import Path

import pytest
import redis as redis_sync

from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer
from tests.support.workers import spawn

pytestmark = [
    pytest.mark.redis,
    pytest.mark.faults,
    pytest.mark.parametrize("watchdog", ["task", "thread"]),
    pytest.mark.parametrize("kind", ["Lock", "Semaphore"]),
]

TTL = 1.2
BASES = {"Lock": "aiolocks:lock:{forked}", "Semaphore": "aiolocks:semaphore:{forked}"}


def test_a_child_never_releases_nor_renews_the_lease_of_its_parent(
    server: RedisServer, tmp_path: Path, kind: str, watchdog: str
) -> None:
    """F21: whatever the child does, the parent keeps its lease; once the parent is dead, the child keeps nothing."""
    with (
        spawn("-m", "tests.faults.support.forking", kind, server.url, str(TTL), watchdog) as parent,
        redis_sync.Redis.from_url(server.url) as operator,
    ):
        said = [parent.line(), parent.line()]
        assert said == ["child: held False, lost True, renewed False, released False", "parent: held True"]
        assert operator.exists(BASES[kind])
        time.sleep(1.5 * TTL)
        assert operator.exists(BASES[kind]), "the parent renews it"
        parent.process.kill()
        killed_at = time.monotonic()
        while operator.exists(BASES[kind]) and not expired(operator, kind):
            assert_within(time.monotonic() - killed_at, TTL + SLACK * 0.2, "the child renews it")
            time.sleep(0.01)
        print(f"{kind}, {watchdog}: ended {time.monotonic() - killed_at:.3f} s after the parent was killed")
        assert parent.line() == "child: still here"


def expired(operator: redis_sync.Redis, kind: str) -> bool:
    """Whether a semaphore's only permit has lapsed; it is removed by whoever asks next."""
    if kind == "Lock":
        return False
    seconds, microseconds = operator.time()
    return operator.zcount(BASES[kind], seconds * 1000 + microseconds // 1000, "+inf") == 0


EXIT = """
import asyncio, os, sys
from redis.asyncio import Redis
from aiolocks import Lock, Semaphore

async def main(url, kind, watchdog, how):
    async with Redis.from_url(url) as redis:
        lock = Lock(redis, "exits", watchdog=watchdog)
        if kind == "Semaphore":
            lock = Semaphore(redis, "exits", 1, watchdog=watchdog)
        async with (lock if how == "block" else lock.hold()) as lease:
            child = os.fork()
            if child == 0:
                sys.exit(7)
            print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print("parent:", await lease.renew())

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("how", ["block", "hold"])
def test_a_child_that_exits_inside_a_block_of_its_parent_ends_as_it_says(
    server: RedisServer, kind: str, watchdog: str, how: str
) -> None:
    """There is nothing that it could release, and no loop to do it in."""
    with spawn("-c", EXIT, server.url, kind, watchdog, how) as parent:
        printed, _ = parent.process.communicate(timeout=20)
    assert printed == "child: 7\nparent: True\n"
