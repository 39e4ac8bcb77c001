"""A semaphore's leases end by the server's clock, in every script, also after that clock stepped back (P9)."""

from collections.abc import Callable

import pytest
from redis import Redis

from aiolocks._core.modes import EXCLUSIVE, SHARED
from tests.scripts.calls import HOUR_MS, LIFE, TTL, Busy, Scripts, token
from tests.scripts.states import ends_in, holders, lapse

VERBS: dict[str, Callable[[Scripts], object]] = {
    "grant": lambda semaphore: semaphore.grant("zoe"),
    "grant without waiting": lambda semaphore: semaphore.grant("zoe", wait=False),
    "recheck": lambda semaphore: semaphore.recheck("zoe"),
    "release": lambda semaphore: semaphore.release("zoe"),
    "renew": lambda semaphore: semaphore.renew("zoe"),
    "resize": lambda semaphore: semaphore.resize(3),
    "pause": lambda semaphore: semaphore.pause(60_000),
    "resume": lambda semaphore: semaphore.pause(0),
    "statistics": lambda semaphore: semaphore.statistics(),
}


def _fields(semaphore: Scripts) -> set[bytes]:
    return set(semaphore.redis.hkeys(semaphore.key("meta"))) - {b"limit", b"fence", b"weight", b"ttl", b"used", b"line"}


def _step_back(semaphore: Scripts, who: str, ms: int) -> None:
    """Let the server's clock have gone back: all that is noted in its terms lies that much further ahead."""
    semaphore.redis.zincrby(semaphore.keys.base, ms, token(who))
    used, members, witness, *instants = semaphore.redis.hget(semaphore.key("meta"), "used").split()
    later = [b"%d" % (int(instant) + ms) for instant in instants]
    semaphore.redis.hset(semaphore.key("meta"), "used", b" ".join([used, members, witness, *later]))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_drops_the_leases_that_ran_out_and_what_was_known_of_them(semaphore: Scripts, verb: str) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben")
    lapse(semaphore, "ann")
    VERBS[verb](semaphore)
    assert ("ann" in holders(semaphore), "ben" in holders(semaphore)) == (False, True)
    assert (token("ann") in _fields(semaphore), token("ben") in _fields(semaphore)) == (False, True)
    semaphore.release("ben")
    assert token("ben") not in _fields(semaphore)


def test_permits_of_a_lease_that_ran_out_can_be_had(full: Scripts) -> None:
    lapse(full, "ann")
    full.granted("ben", permits=3)
    assert full.statistics().permits == 3


_ALL = {"semaphore": 3, "rwlock": EXCLUSIVE}


@pytest.fixture(params=list(_ALL))
def several(request: pytest.FixtureRequest, backend: Redis) -> Scripts:
    """A semaphore of three, and a read-write lock that is asked for to read."""
    scripts = Scripts(backend, request.param, limit=3)
    scripts.usual = 1 if scripts.kind == "semaphore" else SHARED
    return scripts


def test_a_dead_lease_from_before_the_clock_stepped_back_lasts_no_longer_than_any(several: Scripts) -> None:
    """A holder that lives was promised that much at most; the TTL of another that asks says nothing."""
    for who, ttl_ms in (("ann", TTL), ("ben", 2 * TTL), ("cat", 5_000)):
        several.granted(who, ttl_ms=ttl_ms)
    ends_in(several, "ann", HOUR_MS)
    ends_in(several, "ben", 2 * HOUR_MS)
    assert isinstance(several.grant("dan", permits=_ALL[several.kind], ttl_ms=1_000, wait=False), Busy)
    left = holders(several)
    assert all(2 * TTL - 1_000 < left[who] <= 2 * TTL for who in ("ann", "ben"))
    assert left["cat"] <= 5_000


def test_such_a_lease_is_over_when_it_has_lasted_that_long(full: Scripts) -> None:
    """What is noted of the first end is brought down with it: else its permits come back an hour late."""
    _step_back(full, "ann", HOUR_MS)
    answer = full.run("grant", who="ben", ttl_ms=TTL, permits=3, ticket=-1, life_ms=LIFE, limit=3, declare=0)
    assert answer[0] == b"busy"
    _step_back(full, "ann", -(HOUR_MS + TTL // 2))  # an hour passes, and no caller asks
    full.granted("ben", permits=3)


def test_a_lease_that_is_long_for_a_reason_is_not_shortened(several: Scripts) -> None:
    several.granted("ann")
    several.renew("ann", HOUR_MS)
    several.granted("ben", ttl_ms=TTL)
    assert isinstance(several.grant("cat", permits=_ALL[several.kind], wait=False), Busy)
    assert holders(several)["ann"] > HOUR_MS - 1_000
