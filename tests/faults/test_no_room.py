"""No connection can be made, as the server or this process has no room for one more: that is ridden out."""

import asyncio
import json
import time

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lock
from tests.faults.support.programs import printed
from tests.support.lateness import SLACK, assert_within, in_time
from tests.support.servers import RedisServer


async def test_a_server_that_takes_no_more_clients_is_ridden_out(own_server: RedisServer) -> None:
    never = Retry(NoBackoff(), 0)
    async with (
        Redis.from_url(own_server.url) as admin,
        Redis.from_url(own_server.tcp_url, retry=never) as other,
        Redis.from_url(own_server.tcp_url, retry=never) as client,
    ):
        await other.ping()
        await admin.config_set("maxclients", 2)
        begun = time.monotonic()
        async with in_time(0.5 + 1.0 * SLACK):
            with pytest.raises(RedisConnectionError, match="max number of clients"):
                await Lock(client, "orders").acquire(timeout=0.5)
        assert time.monotonic() - begun >= 0.5
        async with in_time(0.3 * SLACK):
            with pytest.raises(RedisConnectionError, match="max number of clients"):
                await Lock(client, "orders").try_acquire()
        acquiring = asyncio.create_task(Lock(client, "orders").acquire(timeout=10))
        await asyncio.sleep(0.5)
        assert not acquiring.done()
        await other.connection_pool.disconnect()
        lease = await acquiring
        await admin.config_set("maxclients", 1)
        await admin.client_kill_filter(_type="normal", skipme=True)
        renewing = asyncio.create_task(lease.renew())
        await asyncio.sleep(0.5)
        assert not renewing.done()
        await admin.config_set("maxclients", 2)
        assert (await renewing, await lease.release()) == (True, True)


PROGRAM = """
import asyncio, json, os, sys, time
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from aiolocks import Lock
from tests.faults.support.descriptors import exhaust

url, when = sys.argv[1:]

async def outcome(coroutine):
    begun = time.monotonic()
    try:
        await coroutine
        said = "done"
    except BaseException as error:
        said = [each.__name__ for each in type(error).__mro__] + [str(error)]
    return said, time.monotonic() - begun

async def main():
    policy = {} if when == "default" else {"retry": Retry(NoBackoff(), 0)}
    async with Redis.from_url(url, **policy) as client:
        lock = Lock(client, "orders")
        if when == "reconnect":
            async with lock:
                pass
            async with Redis.from_url(url) as other:
                await other.client_kill_filter(_type="normal", skipme=True)
            await asyncio.sleep(0.1)  # the link that was cut has one
        taken = exhaust(64)
        outcomes = [await outcome(lock.acquire(timeout=0.6)), await outcome(lock.try_acquire())]
        acquiring = asyncio.create_task(outcome(lock.acquire(timeout=10)))
        await asyncio.sleep(0.4)
        for each in taken:
            os.close(each)
        outcomes.append(await acquiring)
        await lock.locked()
    print(json.dumps(outcomes))

asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["first", "reconnect", "default"])
@pytest.mark.parametrize("by", ["url", "tcp_url"])
def test_a_process_without_a_file_descriptor_left_is_ridden_out(own_server: RedisServer, by: str, when: str) -> None:
    """Also where the first acquire has to import what it needs."""
    said = printed("-c", PROGRAM, getattr(own_server, by).replace("127.0.0.1", "localhost"), when)
    (waited, took), (tried, at_once), (later, until_free) = json.loads(said)
    for said in (waited, tried):
        assert "ConnectionError" in said
        assert "RedisError" in said
        assert "file" in said[-1]
    assert took >= 0.6
    assert_within(took, 0.6 + 1.0 * SLACK)
    assert_within(at_once, 0.5 * SLACK)
    assert later == "done"
    assert_within(until_free, 0.4 + 1.0 * SLACK)
