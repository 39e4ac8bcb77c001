"""The makes of client for which the conformance table is run: AIOLOCKS_CLIENT names one.

Left out, it is redis-py's default client on the unix socket, and the in-memory server's besides.

By `sentinel` the session's server is the primary that three Sentinels name.

By `cluster` it is a `ClusterSet` of three primaries, which are emptied, and looked through for leftovers, together. It
has no socket and no `operator`: a test that needs one server that sees all takes the fixture `one_server`, and is
skipped. `Redis.from_url` does not understand its URL: clients are made by fixtures, `plain_client` or `client_at`.
"""

import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
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
from tests.support.tls import tls_options, write_certificate

OPERATING = Path(__file__).parent.parent.parent / "examples" / "OPERATING.md"
PASSWORD = "correct horse"

CHOSEN = os.environ.get("AIOLOCKS_CLIENT", "")

_QUIET = 60.0
"""Seconds: nothing is replaced because a busy machine made it stand still."""

_sentinel_sets: dict[RedisServer | ClusterSet, SentinelSet] = {}
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
    told: Any = server.operator.config_get("tls-*")
    verified = {
        "ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True, "ssl_ca_certs": told["tls-ca-cert-file"],
    }  # fmt: skip
    return Redis(host="localhost", port=int(told["tls-port"]), ssl=True, **verified)


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
    return _sentinel_sets[server].sentinels if server in _sentinel_sets else []


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
    elif CHOSEN == "tls":
        write_certificate(directory, trustme.CA(), "localhost", "127.0.0.1")
        with reserved_port() as reserved:
            with RedisServer(options=tls_options(directory, str(reserved.getsockname()[1]))) as running:
                yield running
    else:
        with RedisServer() as running:
            yield running
