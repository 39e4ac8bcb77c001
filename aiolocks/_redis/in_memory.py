"""`memory://`: the same Lua scripts on a server inside this process, for demos, tests and single-process programs.

The server is fakeredis, which the extra 'memory' of aiolocks installs; nothing here imports it before it is asked for.
"""

from typing import Any
from urllib.parse import unquote

from redis.asyncio import Redis

SCHEME = "memory://"

_servers: dict[str, Any] = {}
"""The named ones, for as long as the process lives."""


def memory_client(url: str) -> Redis:
    """Return a client of the in-memory server that *url* names: ``memory://`` is private, ``memory://NAME`` shared.

    Raises:
        ImportError: The extra is not installed.
        ValueError: The URL holds more than a name.
    """
    try:
        from fakeredis import FakeAsyncRedis, FakeServer
    except ImportError as error:
        raise ImportError("memory:// needs the extra 'memory' of aiolocks") from error
    name = url.removeprefix(SCHEME).rstrip("/")
    if not set(name).isdisjoint("/?#@"):
        raise ValueError("memory:// takes a name and nothing else, such as memory://tests")
    name = unquote(name)
    server = FakeServer(version=(7,)) if not name else _servers.get(name)
    if server is None:
        server = _servers[name] = FakeServer(version=(7,))
    client: Redis = FakeAsyncRedis(server=server)
    return client
