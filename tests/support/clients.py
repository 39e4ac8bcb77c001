"""The makes of client for which the conformance table is run: AIOLOCKS_CLIENT names one.

Left out, it is redis-py's default client on the unix socket, and the in-memory server's besides.

By `sentinel` the session's server is the primary that three Sentinels name, and all else is as ever.

By `cluster` the session's `server` is a `ClusterSet` of three primaries without replicas, which are emptied, and looked
through for leftovers, together. A test that needs more of `server` than `flush`, `url` and `servers` cannot be run
there: it has no socket and no `operator`, as no one node sees all keys, connections or channels. Its URLs begin with
`redis+cluster://`, which `LockManager.from_url` understands and `Redis.from_url` does not: clients are made by the
fixtures `client`, `stranger` and `redis`, by `plain_client`, or of a URL by `client_at`. A test that cannot do without
one server that sees all takes the fixture `one_server`, and is skipped there.
"""

import atexit
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import redis
import trustme
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff

from aiolocks import LockManager
from tests.support.clusters import ClusterSet
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer, reserved_port

OPERATING = Path(__file__).parent.parent.parent / "examples" / "OPERATING.md"
PASSWORD = "correct horse"

CHOSEN = os.environ.get("AIOLOCKS_CLIENT", "")

_QUIET = 60.0
"""Seconds: nothing is replaced because a busy machine made it stand still."""

_sentinel_sets: dict[RedisServer, SentinelSet] = {}
"""By their primary."""


def _of(url: str, **options: Any) -> Redis:
    client: Redis = Redis.from_url(url, **options)
    return client


def _with_rights(server: RedisServer, name: str, *rights: str) -> Redis:
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *rights)
    return _of(server.url, username=name, password=PASSWORD)


def documented_rights(*, cluster: bool = False) -> list[str]:
    """Return what a user needs, as is documented, of a *cluster* too."""
    text = OPERATING.read_text(encoding="utf-8")
    block = text.split("<!-- acl -->")[1].split("```")[1]
    more = text.split("<!-- acl-cluster -->")[1].split("```")[1].removeprefix("text").split() if cluster else []
    return [*block.split()[block.split().index(">secret") + 1 :], *more]


def _over_tls(server: RedisServer) -> Redis:
    authority = _authority()
    return Redis(
        host="localhost",
        port=_tls_port(),
        ssl=True,
        ssl_ca_data=authority.cert_pem.bytes().decode(),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
        ssl_check_hostname=True,
    )


CLIENTS: dict[str, Callable[[RedisServer], AbstractAsyncContextManager[Redis]]] = {
    "acl": lambda server: _with_rights(server, "restricted", *documented_rights()),
    "decoded": lambda server: _of(server.url, decode_responses=True),
    "no-retries": lambda server: _of(server.url, retry=Retry(NoBackoff(), 0)),
    "password": lambda server: _with_rights(server, "anybody", "~*", "&*", "+@all"),
    "pool-of-one": lambda server: Redis.from_pool(
        BlockingConnectionPool.from_url(server.url, max_connections=1, timeout=5)
    ),
    "resp2": lambda server: _of(server.tcp_url, protocol=2),
    "resp3": lambda server: _of(server.tcp_url, protocol=3),
    "retries": lambda server: _of(server.tcp_url, retry=Retry(ConstantBackoff(0.01), 20)),
    "sentinel": lambda server: _sentinel_sets[server].client(),
    "single": lambda server: _of(server.tcp_url, single_connection_client=True),
    "tls": _over_tls,
}


def chosen_client(server: RedisServer | ClusterSet) -> AbstractAsyncContextManager[Redis]:
    return CLIENTS[CHOSEN](server) if CHOSEN and isinstance(server, RedisServer) else plain_client(server)


def plain_client(server: RedisServer | ClusterSet) -> AbstractAsyncContextManager[Any]:
    """Return redis-py's default client of what the session's server is."""
    return server.client() if isinstance(server, ClusterSet) else _of(server.url)


def client_at(url: str) -> Any:
    """Return redis-py's client of *url*, also of one that `Redis.from_url` does not understand."""
    return LockManager.from_url(url).client if "+" in url.partition("://")[0] else _of(url)


def sentinels_of(server: RedisServer | ClusterSet) -> list[RedisServer]:
    group = _sentinel_sets.get(server) if isinstance(server, RedisServer) else None
    return group.sentinels if group else []


@contextmanager
def session_server(directory: Path) -> Iterator[RedisServer | ClusterSet]:
    """Run what the chosen make of client needs; certificates go into *directory*."""
    if CHOSEN == "sentinel":
        with SentinelSet(replicas=1, down_after=_QUIET) as group:
            _sentinel_sets[primary := group.primary()] = group
            yield primary
    elif CHOSEN == "cluster":
        with ClusterSet(replicas=0, node_timeout=_QUIET) as cluster:
            yield cluster
    else:
        with RedisServer(options=_server_options(directory)) as running:
            yield running


@cache
def _authority() -> trustme.CA:
    return trustme.CA()


@cache
def _tls_socket() -> socket.socket:
    reserved = reserved_port()
    atexit.register(reserved.close)
    return reserved


def _tls_port() -> int:
    port: int = _tls_socket().getsockname()[1]
    return port


def _server_options(directory: Path) -> dict[str, str]:
    if CHOSEN != "tls":
        return {}
    authority, certificate = _authority(), _authority().issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    return {
        "tls-port": str(_tls_port()),
        "tls-ca-cert-file": str(directory / "ca.pem"),
        "tls-cert-file": str(directory / "cert.pem"),
        "tls-key-file": str(directory / "key.pem"),
        "tls-auth-clients": "no",
    }
