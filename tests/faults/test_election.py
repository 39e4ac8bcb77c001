"""`Election` under faults: an outage never ends it, and never are there two leaders."""

import asyncio
import logging

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import Election, Lease, LockManager
from tests.faults.support.programs import printed
from tests.support.elections import Leading, running, waiting
from tests.support.lateness import SLACK, bounded, in_time
from tests.support.network import until
from tests.support.servers import RedisServer

NAME = "scheduler"
KEY = f"aiolocks:election:{{{NAME}}}"


@pytest.mark.slow
async def test_an_outage_of_ten_ttls_ends_no_candidate_and_is_one_line_for_each(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    ttl = 0.5
    caplog.set_level(logging.WARNING, "aiolocks.election")
    async with Redis.from_url(own_server.url) as first, Redis.from_url(own_server.url) as second:
        candidates = [Election(client, NAME, ttl=ttl) for client in (first, second)]
        leads = [Leading(), Leading()]
        async with running(candidates[0], leads[0]) as one:
            lease = await leads[0].elected()
            async with running(candidates[1], leads[1]) as other:
                await waiting(candidates[1], 1)
                own_server.kill()
                await asyncio.sleep(10 * ttl)
                assert not any(candidate.is_leader for candidate in candidates)
                assert (lease.lost, leads[0].cancelled) == (True, 1)
                lines = [record for record in caplog.records if record.name == "aiolocks.election"]
                assert len(lines) == 2, "one line for each candidate"
                own_server.restart()
                async with in_time(ttl + SLACK * 1):
                    while not any(candidate.is_leader for candidate in candidates):
                        await asyncio.sleep(0.005)
                assert {one.done(), other.done()} == {False}
    terms = sorted(term for lead in leads for term in lead.terms)
    assert len(set(terms)) == len(terms) >= 2


@pytest.mark.leaves_residue
async def test_what_no_attempt_can_help_leaves_run(redis: Redis) -> None:
    await redis.rpush(KEY, "of another type")
    with pytest.raises(ResponseError, match=r"WRONGTYPE|wrong kind"):
        await Election(redis, NAME).run(Leading())
    await redis.delete(KEY)


async def test_changes_outlive_an_outage(own_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with Redis.from_url(own_server.url) as client:
        changes = Election(client, NAME, ttl=0.5).changes()
        assert await anext(changes) is None
        own_server.kill()
        following = asyncio.ensure_future(anext(changes))
        await until(lambda: any("cannot be asked" in record.getMessage() for record in caplog.records))
        own_server.restart()
        async with running(Election(client, NAME, ttl=0.5), Leading()), bounded(15):
            assert (await following) is not None
        await changes.aclose()


def test_the_loop_may_end_and_the_object_stands_in_the_next_one(redis_url: str) -> None:
    lead, kept = Leading(), list[Election]()

    async def returns(lease: Lease) -> None: ...

    async def life(number: int) -> None:
        async with LockManager.from_url(redis_url) as locks:
            if not kept:
                kept.append(Election(locks.client, NAME, ttl=2))
            task = asyncio.create_task(kept[0].run(returns if number else lead))
            await (task if number else lead.elected())  # `asyncio.run` cancels the task that still leads

    asyncio.run(life(0))
    assert (kept[0].is_leader, kept[0].term, lead.cancelled) == (False, None, 1)
    asyncio.run(life(1))


CLOSED = """
import asyncio, gc, sys, time
from redis.asyncio import Redis
from aiolocks import Election

async def lead(lease):
    elected.set_result(None)
    await asyncio.sleep(60)

loop = asyncio.new_event_loop()
loop.set_exception_handler(lambda *_: None)  # the task is the program's own: asyncio would report it as pending
elected = loop.create_future()
election = Election(Redis.from_url(sys.argv[1]), "scheduler", ttl=0.5)
task = loop.create_task(election.run(lead))
loop.run_until_complete(elected)
loop.close()
while election.is_leader:
    time.sleep(0.01)
del task
gc.collect()

async def again():
    async with Redis.from_url(sys.argv[1]) as redis:
        assert await election.resign() is False
        async def lead(lease):
            return "again"
        print(await Election(redis, "scheduler", ttl=0.5).run(lead))

asyncio.run(again())
"""


def test_a_leader_whose_loop_is_closed_is_destroyed_quietly(redis_url: str) -> None:
    assert printed("-c", CLOSED, redis_url) == "again\n", "nothing of a coroutine that ignored its end"
