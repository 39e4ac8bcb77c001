"""At the server's memory limit leases can still be kept, ended and handed over; new ones cannot be had (W9)."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from redis.exceptions import ResponseError

from tests.scripts import states
from tests.scripts.calls import TTL, Busy, Grant, Queued, Scripts, on_server

pytestmark = on_server

both_ways = pytest.mark.parametrize("wait", [True, False])


@contextmanager
def _full(scripts: Scripts) -> Iterator[None]:
    with states.configured(scripts, maxmemory=1, maxmemory_policy="noeviction"):
        with pytest.raises(ResponseError, match="used memory"):
            scripts.redis.set("one more", "")
        yield


@pytest.fixture
def awaited(exclusive: Scripts) -> Scripts:
    """Held by ann; ben waits in the session `home`."""
    exclusive.granted("ann", ttl_ms=5_000)
    exclusive.queued("ben")
    return exclusive


@both_ways
@pytest.mark.parametrize("used", [False, True])
def test_what_is_free_is_not_granted_and_nothing_changes(exclusive: Scripts, used: bool, wait: bool) -> None:
    if used:
        exclusive.granted("zoe")
        exclusive.release("zoe")
    before = states.contents(exclusive)
    with _full(exclusive), pytest.raises(ResponseError, match="used memory"):
        exclusive.grant("ann", wait=wait)
    assert states.contents(exclusive) == before


def test_at_the_memory_limit_no_caller_is_queued_and_a_waiter_keeps_its_place(awaited: Scripts) -> None:
    before = states.contents(awaited)
    with _full(awaited):
        with pytest.raises(ResponseError, match="used memory"):
            awaited.grant("cat")
        assert states.contents(awaited) == before
        assert isinstance(awaited.grant("cat", wait=False), Busy)
        assert isinstance(awaited.grant("ben"), Queued)
        assert states.line(awaited) == ["ben"]


def test_a_holder_that_asks_again_has_its_lease_extended(awaited: Scripts) -> None:
    """The confirmation of a grant that was handed over a while ago."""
    with _full(awaited):
        assert awaited.granted("ann", ttl_ms=TTL).fence == states.fence_of(awaited, "ann")
        assert states.holders(awaited)["ann"] > 5_000


def test_a_lease_is_renewed(awaited: Scripts) -> None:
    with _full(awaited):
        assert awaited.renew("ann", TTL)
        assert states.holders(awaited)["ann"] > 5_000


def test_a_release_hands_over_in_its_reply(awaited: Scripts) -> None:
    with _full(awaited):
        assert awaited.release("ann").mine == [Grant("ben", states.fence_of(awaited, "ben"), TTL)]
        assert int(states.last_fence(awaited)) == states.fence_of(awaited, "ben")
        assert states.holders(awaited)["ben"] > 5_000


def test_at_the_memory_limit_a_waiter_can_leave_the_queue(awaited: Scripts) -> None:
    with _full(awaited):
        awaited.release("ben")
        assert states.line(awaited) == states.sessions(awaited) == []


def test_a_recheck_puts_a_session_that_was_passed_over_back(awaited: Scripts) -> None:
    """And it keeps the line alive, and makes a turn that it finds a whole lease."""
    awaited.redis.delete(awaited.key("queue"))
    awaited.redis.pexpire(awaited.key("waiters"), 1_000)
    with _full(awaited):
        recheck = awaited.recheck("ben", "ann")
        assert recheck.passed_over
        assert recheck.answers[0] > 0
        assert states.sessions(awaited) == ["home"]
        assert states.pttl(awaited, awaited.key("waiters")) > 1_000
        assert states.holders(awaited)["ann"] > 5_000


@both_ways
def test_at_the_memory_limit_asking_for_a_free_name_hands_it_to_the_first_waiter(awaited: Scripts, wait: bool) -> None:
    """Either nothing happens or all of it; a message without a lease would make two holders."""
    states.lapse(awaited, "ann")
    before = states.contents(awaited)
    with states.listening(awaited, "home") as inbox, _full(awaited):
        with suppress(ResponseError):
            awaited.grant("cat", session="away", wait=wait)
        told = [message.who for message in inbox.messages()]
        assert told == [who for who, left in states.holders(awaited).items() if left > 0]
        assert told or states.contents(awaited) == before


@both_ways
def test_asking_for_what_only_the_dead_wait_for_changes_nothing_or_all(awaited: Scripts, wait: bool) -> None:
    states.lapse(awaited, "ann")
    states.die(awaited, "home")
    with _full(awaited):
        with suppress(ResponseError):
            awaited.grant("cat", wait=wait)
        live = [who for who, left in states.holders(awaited).items() if left > 0]
        assert live in ([], ["cat"])
        if live:
            assert int(states.last_fence(awaited)) == states.fence_of(awaited, "cat")
