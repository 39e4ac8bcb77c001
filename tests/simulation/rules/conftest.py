"""The world of a scene, for each kind whose scripts it is about."""

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.scripts.calls import Scripts
from tests.simulation.rules.scene import Scene, playing
from tests.support.servers import RedisServer


@pytest.fixture(params=["lock", "semaphore"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def scene(kind: str) -> Iterator[Scene]:
    with playing(kind) as found:
        yield found


@pytest.fixture
def nodes(kind: str) -> Iterator[Scene]:
    with playing(kind, nodes=3) as found:
        yield found


@pytest.fixture
def scripts(kind: str, server: RedisServer) -> Iterator[Scripts]:
    """One script at a time, on a real server."""
    with Redis.from_url(server.url) as client:
        client.flushall()
        yield Scripts(client, "lock" if kind == "lock" else "semaphore", limit=1)
