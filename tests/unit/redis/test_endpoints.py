"""Where the connections of a loop lead, and the pipelines of a loop that is not the session's."""

import asyncio

import pytest
from redis.asyncio.sentinel import Sentinel

from aiolocks._redis.clients import Server, place_of, pool_of, server_of
from aiolocks._redis.connection import Connection
from aiolocks._redis.endpoints import Pipelines
from aiolocks._redis.scripts import Arguments, PlainCommand
from aiolocks._redis.sentinel import SentinelPrimary
from tests.support.answering import SILENCE, Answering
from tests.support.virtual import clock

ASKED = PlainCommand("a")


def pipelines() -> Pipelines:
    return Pipelines(asyncio.get_running_loop(), clock, lambda: None, lambda: None)


async def test_there_is_one_for_each_pool_and_they_end_together() -> None:
    server, other = Answering(lambda asked: SILENCE), Answering(lambda asked: SILENCE)
    here, told = pipelines(), list[object]()
    assert here.of(server) is here.of(server) is not here.of(other)
    for each in (server, other):
        here.of(each).route(b"").submit(ASKED, (), lambda _, reply: told.append(str(reply)), 5)
    await asyncio.sleep(1)
    assert [len(each.asked) for each in (server, other)] == [1, 1]
    here.close()
    assert told == ["Connection closed."] * 2
    await asyncio.sleep(0)


async def test_in_a_forked_child_the_links_of_all_are_let_go() -> None:
    let_go: list[str] = []
    server, other, idle = (Answering(lambda asked: asked.what) for _ in range(3))

    def arguments(name: str, link: Connection) -> Arguments:
        link.detach_in_fork = lambda: let_go.append(name)  # type: ignore[method-assign]  # to see that it is
        return ()

    here = pipelines()
    here.detach_in_fork()
    here.of(idle)
    for each, name in ((server, "one"), (other, "other")):
        here.of(each).route(b"").submit(ASKED, arguments, lambda *_: None, 5, name)
    await asyncio.sleep(1)
    here.detach_in_fork()
    assert let_go == ["one", "other"]
    here.close()
    await asyncio.sleep(0)


def sentinel(*hosts: str) -> Sentinel:
    return Sentinel([(host, 26379) for host in hosts])  # type: ignore[no-untyped-call]


async def test_where_connections_lead_goes_by_the_client() -> None:
    own = pipelines()
    assert isinstance(own.of(Answering(lambda asked: 1)).route(b"").pipeline.endpoint, Server)
    behind = own.of(sentinel("a").master_for("locks").connection_pool)
    assert isinstance(behind.route(b"").pipeline.endpoint, SentinelPrimary)
    own.close()


def test_a_primary_behind_sentinels_is_known_by_them_and_its_service() -> None:
    one = pool_of(sentinel("a", "b").master_for("locks"))
    assert server_of(one) == server_of(pool_of(sentinel("b", "a").master_for("locks")))
    for other in (sentinel("a", "c").master_for("locks"), sentinel("a", "b").master_for("other")):
        assert server_of(one) != server_of(pool_of(other))
    assert place_of(one) == "a:26379,b:26379/locks"


def test_a_client_of_replicas_is_refused() -> None:
    with pytest.raises(TypeError, match="master_for, not slave_for"):
        pool_of(sentinel("a").slave_for("locks"))
