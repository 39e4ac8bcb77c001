"""The makes of client for which the conformance table is run: AIOLOCKS_CLIENT names one.

Left out, it is redis-py's default client on the unix socket, and the in-memory server's besides.
"""

import atexit
import os
import socket
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import redis
import trustme
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff

from tests.support.servers import RedisServer, reserved_port

README = Path(__file__).parent.parent.parent / "README.md"
PASSWORD = "correct horse"

CHOSEN = os.environ.get("AIOLOCKS_CLIENT", "")


def _of(url: str, **options: Any) -> Redis:
    client: Redis = Redis.from_url(url, **options)
    return client


def _with_rights(server: RedisServer, name: str, *rights: str) -> Redis:
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *rights)
    return _of(server.url, username=name, password=PASSWORD)


def rights_in_readme() -> list[str]:
    """Return what the README says that a user needs."""
    block = README.read_text(encoding="utf-8").split("<!-- acl -->")[1].split("```")[1]
    return block.split()[block.split().index(">secret") + 1 :]


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


CLIENTS: dict[str, Callable[[RedisServer], Redis]] = {
    "acl": lambda server: _with_rights(server, "restricted", *rights_in_readme()),
    "decoded": lambda server: _of(server.url, decode_responses=True),
    "no-retries": lambda server: _of(server.url, retry=Retry(NoBackoff(), 0)),
    "password": lambda server: _with_rights(server, "anybody", "~*", "&*", "+@all"),
    "pool-of-one": lambda server: Redis.from_pool(
        BlockingConnectionPool.from_url(server.url, max_connections=1, timeout=5)
    ),
    "resp2": lambda server: _of(server.tcp_url, protocol=2),
    "resp3": lambda server: _of(server.tcp_url, protocol=3),
    "retries": lambda server: _of(server.tcp_url, retry=Retry(ConstantBackoff(0.01), 20)),
    "single": lambda server: _of(server.tcp_url, single_connection_client=True),
    "tls": _over_tls,
}


def chosen_client(server: RedisServer) -> Redis:
    """Return a client of the make that AIOLOCKS_CLIENT names."""
    return CLIENTS[CHOSEN](server)


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


def server_options(directory: Path) -> dict[str, str]:
    """Return the lines of redis.conf that this make of client needs; certificates go into *directory*."""
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
