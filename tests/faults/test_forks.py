"""After a fork a lease belongs to the parent alone: a child neither keeps it alive nor ends it, and keeps no link."""

import time

import pytest

from aiolocks.sync import LockManager
from tests.faults.support.programs import printed
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer
from tests.support.workers import spawn

pytestmark = [
    pytest.mark.parametrize("watchdog", ["task", "thread"]),
    pytest.mark.parametrize("kind", ["Lock", "Semaphore"]),
]

TTL = 2.0

RENEWS = """
import asyncio, os, sys, time
from redis.asyncio import Redis
from aiolocks import Lock, Semaphore

async def main(url, kind, watchdog, ttl):
    options = {"ttl": float(ttl), "watchdog": watchdog}
    async with Redis.from_url(url) as redis:
        lock = Lock(redis, "forked", **options) if kind == "Lock" else Semaphore(redis, "forked", 1, **options)
        async with lock as lease:
            await asyncio.sleep(0.5 * lease.remaining())  # it has been renewed
            parent = os.getpid()
            if os.fork() == 0:
                while os.getppid() == parent:
                    time.sleep(0.01)
                time.sleep(2 * float(ttl))
                os._exit(0)
            await asyncio.sleep(2 * float(ttl))
            print(lease.held, flush=True)
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def test_the_parent_keeps_its_lease_and_a_longer_child_does_not(server: RedisServer, kind: str, watchdog: str) -> None:
    """F21: once the parent is dead, the child with its copies of the connections renews nothing."""
    with spawn("-c", RENEWS, server.url, kind, watchdog, str(TTL)) as parent, LockManager.from_url(server.url) as locks:
        lock = locks.lock("forked") if kind == "Lock" else locks.semaphore("forked", 1)
        assert parent.line() == "True"
        assert lock.locked()
        parent.process.kill()
        killed_at = time.monotonic()
        while lock.locked():
            assert_within(time.monotonic() - killed_at, TTL + SLACK * 0.2, "the child renews it")
            time.sleep(0.01)


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
    assert printed("-c", EXIT, server.url, kind, watchdog, how) == "child: 7\nparent: True\n"


WITHOUT_A_DESCRIPTOR = """
import asyncio, contextlib, os, redis, resource, socket, sys, threading
from redis.asyncio import Redis
from aiolocks import Lock, Semaphore
from tests.faults.support.descriptors import exhaust

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
        taken = exhaust(limit)
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
    assert printed("-c", WITHOUT_A_DESCRIPTOR, server.url, kind, watchdog, str(limit)).splitlines() == [
        "parent: True",
        "child: 0 [False, False]",
        "child: [(False, False), (False, False)]",
        "child: 0",
        "parent: [(True, True), (True, True)]",
    ]
