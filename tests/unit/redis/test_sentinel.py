"""The primary that Sentinels name, in virtual time: who is asked, which answer counts, and what becomes of links."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from aiolocks._redis.connection import Connection
from aiolocks._redis.pipeline import PendingCall, Pipeline
from aiolocks._redis.scripts import PlainCommand
from aiolocks._redis.sentinel import SentinelPrimary
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.cases import one_by_one
from tests.support.jumping import jumping, timers
from tests.support.virtual import clock

RUN = PlainCommand("RUN")


class Watching(Answering):
    """A Sentinel that knows a primary at *port*, and *others*; its answer takes *late* seconds.

    In a failover that it leads, it names the *promoted* port in the end. If it is *absent*, it refuses connections
    without a turn of the loop, as on the same machine.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.port, self.promoted, self.epoch, self.flags, self.others, self.late = 1, 0, 1, "master", 2, 0.0
        self.absent = False

    def make_connection(self) -> Any:
        return _Refused() if self.absent else super().make_connection()

    def _answer(self, asked: Asked) -> object:
        if asked.words[1] == b"MASTER":
            fields = {
                "ip": "db", "port": self.port, "flags": self.flags, "config-epoch": self.epoch,
                "num-other-sentinels": self.others,
            }  # fmt: skip
            return Later(self.late, [str(word).encode() for pair in fields.items() for word in pair])
        return [b"db", b"%d" % (self.promoted or self.port)]


class _Refused:
    async def connect(self) -> None:
        raise RedisConnectionError("refused")

    async def disconnect(self, nowait: bool = False) -> None:
        pass


class Watched:
    """Three Sentinels, and the servers that they know, by their port; each answers with that."""

    def __init__(self, count: int = 3, **options: Any) -> None:
        self.sentinels = [Watching() for _ in range(count)]
        self.servers = {port: Answering(lambda asked, port=port: port) for port in (1, 2)}  # type: ignore[misc]
        make: Any = Sentinel
        self.manager = make([(f"sentinel{number}", 26379) for number in range(count)], **options)
        for sentinel, client in zip(self.sentinels, self.manager.sentinels, strict=True):
            client.connection_pool.make_connection = sentinel.make_connection
        self.pool: Any = self.manager.master_for("locks").connection_pool
        self.pool.make_connection = self._connection

    def say(self, **facts: Any) -> None:
        for sentinel in self.sentinels:
            for name, value in facts.items():
                setattr(sentinel, name, value)

    def asked(self) -> list[float]:
        return self.sentinels[0].times("SENTINEL")[::2]

    def _connection(self) -> Any:
        return _Leading(self)


class _Leading:
    """A connection that is told where it leads."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    async def connect_to(self, address: tuple[str, int]) -> None:
        self.host, self.port = address
        self._made = self._watched.servers[self.port].make_connection()
        await self._made.connect()

    async def disconnect(self, nowait: bool = False) -> None:
        pass


@asynccontextmanager
async def primary_of(watched: Watched) -> AsyncGenerator[Pipeline]:
    loop = asyncio.get_running_loop()
    pipeline = Pipeline(SentinelPrimary(watched.pool, loop, clock), loop, clock, lambda: None)
    try:
        yield pipeline
    finally:
        pipeline.close()
        await asyncio.sleep(0)
        assert timers() == 0


async def ask(pipeline: Pipeline, *, wait: float = 3.0) -> object:
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def receive(call: PendingCall, reply: object) -> None:
        answered.set_result(reply)

    pipeline.submit(RUN, (), receive, wait)
    return await answered


def unknown(asked: Asked) -> object:
    return ResponseError("No such master with that name")


def silent(asked: Asked) -> object:
    return SILENCE


@pytest.mark.parametrize(("gone", "after"), [(1, 0), (2, 0.5)])
async def test_a_majority_is_waited_for_and_no_more_or_half_a_second_for_what_there_is(gone: int, after: float) -> None:
    watched = Watched()
    watched.sentinels[0].refuses, watched.sentinels[1].hangs = gone == 2, True
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 1
        assert clock() == after


@pytest.mark.parametrize("newest", [0, 1, 2])
async def test_the_newest_configuration_counts(newest: int) -> None:
    """Each failover is known to the one that led it first."""
    watched = Watched()
    watched.sentinels[newest].port, watched.sentinels[newest].epoch = 2, 2
    watched.sentinels[newest - 1].hangs = True
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 2


async def test_a_promoted_replica_is_the_primary_though_the_failover_goes_on() -> None:
    watched = Watched(1)
    [sentinel] = watched.sentinels
    sentinel.promoted, sentinel.epoch, sentinel.flags = 2, 2, "master,s_down,o_down,failover_in_progress"
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 2


async def test_a_late_sentinel_that_alone_knows_of_a_failover_is_heard() -> None:
    """Until the others know, for two seconds, leases would be renewed where they are lost."""
    watched = Watched()
    *_, leader = watched.sentinels
    leader.late = 0.1
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 1
        await asyncio.sleep(0.2)
        leader.promoted, leader.epoch, leader.flags = 2, 2, "master,failover_in_progress"
        await asyncio.sleep(0.5)
        assert [await ask(pipeline) for _ in range(3)] == [2] * 3
        await asyncio.sleep(1)
        assert await ask(pipeline) == 2
        assert len(watched.servers[1].connections) == 1, "nor does it go to and fro"
        leader.late = 0.0
        await asyncio.sleep(1)


async def test_a_newer_configuration_is_forgotten_when_no_sentinel_says_so_any_more() -> None:
    """They may have been set up anew."""
    watched = Watched()
    watched.say(port=2, epoch=7)
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 2
        watched.say(port=1, epoch=0)
        await asyncio.sleep(4)
        assert await ask(pipeline) == 1


@one_by_one("trouble, why", [
    ({"flags": "s_down,master,disconnected"}, "s_down"), ({"flags": "o_down,master"}, "o_down"),
    ({"flags": "slave"}, "slave"), ({"others": 1}, "too few other Sentinels"), ({"refuses": True}, "refused"),
    ({"answer": unknown}, "No such master"), ({"answer": silent}, "no reply in time"),
])  # fmt: skip
@jumping
async def test_a_primary_that_none_takes_to_be_up_is_none(trouble: dict[str, Any], why: str) -> None:
    watched = Watched(min_other_sentinels=2)
    watched.say(**trouble)
    async with primary_of(watched) as pipeline:
        error = await ask(pipeline)
        assert isinstance(error, MasterNotFoundError)
        assert why in str(error)
        assert str(error).count("sentinel") >= 2, "each says why"


async def test_a_primary_that_only_one_takes_to_be_down_is_up() -> None:
    for down in range(3):
        watched = Watched()
        watched.sentinels[down].flags = "s_down,master"
        async with primary_of(watched) as pipeline:
            assert await ask(pipeline) == 1


async def test_the_host_of_a_primary_behind_sentinels_is_mapped_as_the_client_maps_it() -> None:
    watched = Watched(force_master_ip="proxy")
    async with primary_of(watched) as pipeline:
        seen = list[tuple[str, int]]()
        endpoint = pipeline.endpoint
        opened = endpoint.opened

        def see(connection: Any, link: Connection) -> None:
            seen.append((connection.host, connection.port))
            opened(connection, link)

        endpoint.opened = see  # type: ignore[method-assign]  # to see where it leads
        assert await ask(pipeline) == 1
        assert seen == [("proxy", 1)]
        await asyncio.sleep(5)
        assert await ask(pipeline) == 1
        assert len(watched.servers[1].connections) == 1, "it is still the one that is named"


async def test_links_are_closed_when_another_is_named_which_is_asked_more_often_during_a_failover() -> None:
    watched = Watched()
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 1
        await asyncio.sleep(10.1)
        assert len(watched.asked()) == 21, "every half second"
        watched.say(flags="master,failover_in_progress")
        await asyncio.sleep(0.6)
        before = len(watched.asked())
        await asyncio.sleep(1)
        assert 18 <= len(watched.asked()) - before <= 21
        watched.say(port=2, epoch=2, flags="master")
        await asyncio.sleep(0.5)
        assert pipeline.ready is None
        assert await ask(pipeline) == 2


async def test_links_stay_while_no_other_is_named() -> None:
    watched = Watched()
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 1
        watched.say(flags="s_down,o_down,master")
        await asyncio.sleep(5)
        for sentinel in watched.sentinels:
            sentinel.refuses = True
            sentinel.cut()
        await asyncio.sleep(5)
        watched.say(refuses=False, flags="master", late=0.1)
        watched.sentinels[0].__dict__.update(port=2, epoch=0, late=0.0)  # the first to answer, but no majority
        await asyncio.sleep(5)
        assert await ask(pipeline) == 1
        assert len(watched.servers[1].connections) == 1


@pytest.mark.parametrize("eager", [False, True])
@one_by_one("how", ["refuses", "absent", "hangs", "deaf"])
@jumping
async def test_the_watch_outlasts_sentinels_that_are_all_gone_for_a_while(how: str, eager: bool) -> None:
    """Refused by all at once, and before the question was noted as asked, none was asked any more."""
    factory = getattr(asyncio, "eager_task_factory", None)
    if eager and factory is None:
        pytest.skip("there are no eager tasks before Python 3.12")
    if eager:
        asyncio.get_running_loop().set_task_factory(factory)
    watched = Watched()
    async with primary_of(watched) as pipeline:
        assert await ask(pipeline) == 1
        for sentinel in watched.sentinels:
            if how == "deaf":
                sentinel.late = math.inf
            else:
                setattr(sentinel, how, True)
                sentinel.cut()
        await asyncio.sleep(10)
        for sentinel in watched.sentinels:
            sentinel.refuses = sentinel.absent = sentinel.hangs = False
            sentinel.port, sentinel.epoch, sentinel.late = 2, 2, 0.0
        await asyncio.sleep(6)
        assert await ask(pipeline) == 2


async def test_no_sentinel_is_asked_after_the_end_and_the_search_can_begin_again() -> None:
    for moment in (0.0, 0.2, 0.5, 0.7, 1.05):
        watched = Watched()
        watched.say(late=0.1)
        async with primary_of(watched) as pipeline:
            assert await ask(pipeline) == 1
            await asyncio.sleep(moment)
            pipeline.close()
            before = len(watched.asked())
            await asyncio.sleep(5)
            assert len(watched.asked()) == before
            assert timers() == 0
            assert await ask(pipeline) == 1
            await asyncio.sleep(5)
            assert len(watched.asked()) > before + 5


async def test_an_end_while_it_connects_leaves_nothing() -> None:
    for slow in (0.0, 0.1, 3600.0):
        watched = Watched()
        watched.servers[1].slow = slow
        async with primary_of(watched) as pipeline:
            watched.say(late=0.1)
            asked = asyncio.ensure_future(ask(pipeline))
            await asyncio.sleep(0.1)
            pipeline.close()
            assert type(await asked) is RedisConnectionError
            assert timers() == 0
