"""A semaphore's leases end by the server's clock, in every script, also after that clock stepped back (P9)."""

from collections.abc import Callable

import pytest

from tests.scripts.calls import HOUR_MS, LIFE, TTL, Scripts, token
from tests.scripts.states import holders, lapse

VERBS: dict[str, Callable[[Scripts], object]] = {
    "grant": lambda semaphore: semaphore.grant("zoe"),
    "grant without waiting": lambda semaphore: semaphore.grant("zoe", wait=False),
    "recheck": lambda semaphore: semaphore.recheck("zoe"), "release": lambda semaphore: semaphore.release("zoe"),
    "renew": lambda semaphore: semaphore.renew("zoe"), "resize": lambda semaphore: semaphore.resize(3),
    "pause": lambda semaphore: semaphore.pause(60_000), "resume": lambda semaphore: semaphore.pause(0),
    "statistics": lambda semaphore: semaphore.statistics(),
}  # fmt: skip


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


def test_such_a_lease_is_over_when_it_has_lasted_that_long(full: Scripts) -> None:
    """What is noted of the first end is brought down with it: else its permits come back an hour late."""
    _step_back(full, "ann", HOUR_MS)
    answer = full.run("grant", who="ben", ttl_ms=TTL, permits=3, ticket=-1, life_ms=LIFE, limit=3, declare=0)
    assert answer[0] == b"busy"
    _step_back(full, "ann", -(HOUR_MS + TTL // 2))  # an hour passes, and no caller asks
    full.granted("ben", permits=3)
