"""After `os.fork()` a lease belongs to the parent alone: the child neither keeps it alive nor ends it."""

import time

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

TTL = 2.0
BASES = {"Lock": "aiolocks:lock:{forked}", "Semaphore": "aiolocks:semaphore:{forked}"}


def test_a_child_never_releases_nor_renews_the_lease_of_its_parent(
    server: RedisServer, kind: str, watchdog: str
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


WITHOUT_A_DESCRIPTOR = """
import asyncio, contextlib, os, redis, resource, socket, sys, threading
from redis.asyncio import Redis
from aiolocks import Lock, Semaphore

def make(client, name):
    options = {"ttl": 10, "watchdog": watchdog}
    return Lock(client, name, **options) if kind == "Lock" else Semaphore(client, name, 1, **options)

def links():
    found = 0
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            link = socket.socket(fileno=descriptor)
            with contextlib.suppress(OSError):
                found += bool(link.getpeername())
            link.detach()
    return found

def exhaust():
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    return taken

async def misuse(leases):
    return [(await lease.renew(), await lease.release()) for lease in leases]

async def main(url):
    async with Redis.from_url(url) as one, Redis.from_url(url) as other:
        leases = [await make(one, "a").acquire(), await make(other, "b").acquire()]
        waiter = asyncio.create_task(make(one, "b").acquire())
        with redis.Redis.from_url(url) as operator:
            while not operator.pubsub_channels():
                await asyncio.sleep(0.01)
        print("parent:", links() >= 3)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = exhaust()
        child = os.fork()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in taken:
            os.close(each)
        if child == 0:
            print("child:", links(), [lease.held for lease in leases], flush=True)
            in_its_own_loop = threading.Thread(target=lambda: print("child:", asyncio.run(misuse(leases)), flush=True))
            in_its_own_loop.start()
            in_its_own_loop.join()
            os._exit(0)
        print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print("parent:", await misuse(leases))
        await (await waiter).release()

url, kind, watchdog, limit = *sys.argv[1:4], int(sys.argv[4])
asyncio.run(main(url))
"""


@pytest.mark.parametrize("limit", [64, 3], ids=["all are taken", "the limit is below all"])
def test_a_child_without_a_free_file_descriptor_keeps_no_link_of_its_parent(
    server: RedisServer, kind: str, watchdog: str, limit: int
) -> None:
    """What leads its copies of the sockets elsewhere needs one."""
    with spawn("-c", WITHOUT_A_DESCRIPTOR, server.url, kind, watchdog, str(limit)) as parent:
        printed, _ = parent.process.communicate(timeout=20)
    assert printed.splitlines() == [
        "parent: True",
        "child: 0 [False, False]",
        "child: [(False, False), (False, False)]",
        "child: 0",
        "parent: [(True, True), (True, True)]",
    ]
