"""A Redis user that may not publish or count subscribers breaks no script half-way, and nothing is lost (W9)."""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from tests.scripts.calls import LIFE, Busy, Grant, Refused, Scripts, poller, told_either_way_on_server
from tests.scripts.states import holders, keys, lapse, limited_user, line, listening, pttl, sessions, tickets

pytestmark = told_either_way_on_server

_LACKS = {
    "no channels": ["resetchannels"], "no NUMSUB": ["-pubsub"], "neither": ["resetchannels", "-pubsub", "-publish"]
}  # fmt: skip


@pytest.fixture(params=_LACKS)
def limited(request: pytest.FixtureRequest, backend: Redis) -> Iterator[Redis]:
    """A client of a user that lacks rights."""
    with limited_user(backend, *_LACKS[request.param]) as client:
        yield client


def test_a_user_with_the_readmes_rights_waits_and_rechecks(awaited: Scripts, limited: Redis) -> None:
    mine = awaited.over(limited)
    queued = mine.queued("cat")
    assert queued.subscribers in (0, 1)
    assert mine.recheck("cat").answers == [queued.ticket]
    assert mine.statistics().waiting == 2
    mine.release("cat")
    assert line(awaited) == []


def test_a_user_with_the_readmes_rights_hands_over_to_a_polling_session(exclusive: Scripts, limited: Redis) -> None:
    """W11: such sessions are how users of this kind wait."""
    mine = exclusive.over(limited)
    mine.granted("ann")
    mine.queued("ben", session=poller(5_000))
    mine.queued("cat")
    mine.release("ann")
    assert list(holders(exclusive)) == ["ben"]


VERBS: dict[str, Callable[[Scripts], object]] = {
    "release": lambda scripts: scripts.release("zoe"),
    "recheck": lambda scripts: scripts.recheck("zoe"),
    "grant": lambda scripts: scripts.grant("cat"),
    "grant without waiting": lambda scripts: scripts.grant("cat", wait=False),
    "revoke": lambda scripts: scripts.revoke(0, 10**16),
}


@pytest.mark.parametrize("verb", VERBS)
def test_without_rights_a_grant_is_told_or_no_waiter_holds(awaited: Scripts, limited: Redis, verb: str) -> None:
    """A lease that nobody knows of would block everybody for a whole TTL."""
    lapse(awaited, "ann")
    with listening(awaited, "away") as inbox:
        VERBS[verb](awaited.over(limited))
        told = [message.who for message in inbox.messages()]
    live = [who for who, left in holders(awaited).items() if left > 0]
    assert live == (["cat"] if "grant" in verb and not told else told)


def test_without_rights_a_release_wakes_the_next_waiter_or_no_waiter_holds(awaited: Scripts, limited: Redis) -> None:
    with listening(awaited, "away") as inbox:
        assert awaited.over(limited).release("ann").ended
        assert [message.who for message in inbox.messages()] == list(holders(awaited))


def test_a_waiter_that_could_not_be_woken_keeps_its_place_and_gets_its_turn_by_its_next_recheck(
    awaited: Scripts, limited: Redis
) -> None:
    """A line that is put back must end as the one before would have."""
    awaited.queued("cat", session="away")
    before = tickets(awaited, "away")
    awaited.redis.pexpire(awaited.key("waiters", session="away"), 2_000)
    with listening(awaited, "away"):
        awaited.over(limited).release("ann")
        assert (holders(awaited), sessions(awaited)) == ({}, [])
        assert tickets(awaited, "away") == before
        assert [key for key in keys(awaited) if pttl(awaited, key) < 0] == []
        assert pttl(awaited, awaited.key("waiters", session="away")) <= LIFE
        awaited.recheck("ben", session="away")
    assert list(holders(awaited)) == ["ben"]


def test_a_user_with_the_readmes_rights_resizes_and_refuses(semaphore: Scripts, limited: Redis) -> None:
    mine = semaphore.over(limited)
    mine.granted("ann", permits=3)
    mine.queued("ben", permits=3, session="away")
    mine.queued("cat", permits=3)
    with listening(semaphore, "away"):
        assert mine.resize(2) == (3, [Grant("cat", -1, 2)])
    assert mine.grant("dan", permits=3) == Refused(2)
    assert isinstance(mine.grant("dan", wait=False), Busy)
    assert line(semaphore, "away") == line(semaphore) == []
