"""Clients made from a URL."""

from typing import Any

import pytest

from aiolocks import LockManager
from aiolocks._redis.urls import client_of, of_node
from tests.support.cases import one_by_one


def pool_of(url: str) -> Any:
    return client_of(url).connection_pool


def test_a_url_of_sentinels_names_them_the_service_and_the_database() -> None:
    pool = pool_of("redis+sentinel://me:p%40ss@one,two:27000,[::1]:5/lo%2Fcks/3?socket_timeout=4")
    theirs = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in theirs] == [("one", 26379), ("two", 27000), ("::1", 5)]
    assert all(each["socket_timeout"] == 4 and each.get("password") is None for each in theirs)
    ours = pool.connection_kwargs
    assert (pool.service_name, pool.is_master, ours["db"]) == ("lo/cks", True, 3)
    assert (ours["username"], ours["password"]) == ("me", "p@ss")


def test_sentinels_have_credentials_of_their_own_and_the_same_tls() -> None:
    url = "rediss+sentinel://:pw@one/locks?sentinel_username=guard&sentinel_password=a%26b&ssl_ca_certs=/ca.pem"
    pool = pool_of(url)
    theirs = pool.sentinel_manager.sentinels[0].connection_pool
    assert (theirs.connection_kwargs["username"], theirs.connection_kwargs["password"]) == ("guard", "a&b")
    assert (pool.connection_kwargs["password"], "db" in pool.connection_kwargs) == ("pw", False)
    for each in (pool, theirs):
        assert each.connection_kwargs["ssl_ca_certs"] == "/ca.pem"
        assert "SSL" in each.connection_class.__name__


def attempts_of(url: str) -> int | None:
    retry: Any = client_of(url).get_retry()
    return None if retry is None else retry._retries


def test_a_primary_behind_sentinels_is_asked_as_often_as_any_server() -> None:
    assert attempts_of("redis+sentinel://one/locks") == attempts_of("redis://one") is not None
    assert attempts_of("redis+sentinel://one/locks?retry_on_timeout=no") != attempts_of("redis://one")


def test_a_url_of_a_cluster_names_some_of_its_nodes() -> None:
    client = client_of("rediss+cluster://me:p%40ss@one,[::2],two:7001?ssl_ca_certs=/ca.pem")
    assert sorted(client.nodes_manager.startup_nodes) == ["::2:6379", "one:6379", "two:7001"]
    terms = client.nodes_manager.connection_kwargs
    assert (terms["username"], terms["password"], terms["ssl_ca_certs"]) == ("me", "p@ss", "/ca.pem")
    assert "SSL" in terms["connection_class"].__name__


@pytest.mark.parametrize(("url", "host", "node"), [
    ("redis+cluster://one,two:7001", "10.0.0.1", "redis://10.0.0.1:7"),
    ("rediss+cluster://me:p%40ss@[::1]:7000,one/?socket_timeout=4", "::1",
     "rediss://me:p%40ss@[::1]:7?socket_timeout=4"),
])  # fmt: skip
def test_a_node_of_a_cluster_is_reached_by_what_the_url_of_the_cluster_says(url: str, host: str, node: str) -> None:
    assert of_node(url, host, 7) == node
    client_of(node)


@one_by_one("url, says", [
    ("http://localhost", r"url must begin with redis://, rediss://, .*redis\+sentinel://.* or memory://"),
    ("redis", "url must begin with"),
    ("redis+sentinel://user:secret@one", r"names no service: it looks like redis\+sentinel://HOST:PORT,"),
    ("redis+sentinel://user:secret@one/?db=1", "names no service"),
    ("redis+sentinel://user:secret@/locks", "names no Sentinel"),
    ("redis+sentinel://user:secret@one:x/locks", "cannot be read; it looks like"),
    ("redis+sentinel://user:secret@one:99999/locks", "cannot be read"), ("redis://user:secret@one:x", "cannot be read"),
    ("unix://?password=secret", "names no socket: it looks like .*unix:///PATH"),
    ("redis+cluster://user:secret@one/3", r"cannot be read; it looks like redis\+cluster://HOST:PORT,HOST:PORT"),
    ("redis+cluster://user:secret@one,", "cannot be read"),
])  # fmt: skip
def test_what_is_wrong_with_a_url_is_said_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        LockManager.from_url(url)
    assert "secret" not in f"{caught.value!r} {caught.value.__context__!r}"
