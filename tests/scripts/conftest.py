"""Fixtures for tests of the scripts: each script runs against a real server and against the one in memory."""

import pytest
from fakeredis import FakeRedis, FakeServer
from redis import Redis

from tests.scripts.calls import Scripts
from tests.support.kinds import complete, families


@pytest.fixture(params=[pytest.param("server", marks=pytest.mark.redis), "memory"])
def backend(request: pytest.FixtureRequest) -> Redis:
    """An empty Redis."""
    if request.param == "memory":
        return FakeRedis(server=FakeServer(version=(7,)))
    server = request.getfixturevalue("server")
    server.flush()
    operator: Redis = server.operator
    return operator


@pytest.fixture
def sharded(request: pytest.FixtureRequest) -> bool:
    """Whether sessions are told over the channels of a Cluster's shards; not, if a test does not say."""
    wanted: bool = getattr(request, "param", False)
    if wanted and request.getfixturevalue("server").version < (7,):
        pytest.skip("older than Redis 7, which brought these channels")
    return wanted


@pytest.fixture
def lock(backend: Redis, sharded: bool) -> Scripts:
    """A mutex."""
    return Scripts(backend, "lock", sharded=sharded)


@pytest.fixture
def semaphore(backend: Redis, sharded: bool) -> Scripts:
    """A semaphore whose first user declares three permits."""
    return Scripts(backend, "semaphore", limit=3, sharded=sharded)


@pytest.fixture
def full(semaphore: Scripts) -> Scripts:
    """Three permits, all held by ann."""
    semaphore.granted("ann", permits=3)
    return semaphore


@pytest.fixture
def rwlock(backend: Redis, sharded: bool) -> Scripts:
    """A read-write lock; what is asked for without further words is to write."""
    return Scripts(backend, "rwlock", sharded=sharded)


_CALLED = complete({"lock": "lock", "semaphore": "semaphore", "modes": "rwlock"}, families())
"""What `Scripts` calls the scripts of each family."""


@pytest.fixture(params=list(_CALLED.values()))
def exclusive(request: pytest.FixtureRequest, backend: Redis, sharded: bool) -> Scripts:
    """A mutex, a semaphore of one permit, and a lock to write: for what all promise."""
    return Scripts(backend, request.param, limit=1, sharded=sharded)


@pytest.fixture
def held(exclusive: Scripts) -> Scripts:
    """Held by ann for the usual time."""
    exclusive.granted("ann")
    return exclusive


@pytest.fixture
def awaited(held: Scripts) -> Scripts:
    """Held by ann; ben waits in the session `away`, which listens only where a test says so."""
    held.queued("ben", session="away")
    return held


@pytest.fixture
def awaited_here(held: Scripts) -> Scripts:
    """Held by ann; ben waits in the session `home`."""
    held.queued("ben")
    return held


@pytest.fixture
def offered(held: Scripts) -> Scripts:
    """Held by ann, who has handed it off."""
    assert held.hand_off("ann") == 1
    return held
