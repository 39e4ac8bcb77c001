"""Programs that fork while they hold: a child ends as it says, keeps no link of its parent, and can end no lease."""

import pytest

from tests.faults.support.programs import printed
from tests.support.servers import RedisServer

pytestmark = [
    pytest.mark.redis,
    pytest.mark.faults,
    pytest.mark.parametrize("watchdog", ["task", "thread"]),
    pytest.mark.parametrize("kind", ["Lock", "Semaphore"]),
]


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
