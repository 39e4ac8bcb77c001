"""`grant` of what is free while others are in line: it hands over to them, so a newcomer passes nobody (W7)."""

import pytest

from tests.scripts.calls import TTL, Busy, Grant, Queued, Scripts, told_either_way
from tests.scripts.states import die, fence_of, holders, lapse, line, listening, sessions

pytestmark = told_either_way

both_ways = pytest.mark.parametrize("wait", [True, False])


@pytest.fixture
def lapsed(exclusive: Scripts) -> Scripts:
    """Free since ann's lease ran out; ben waits in the session `early`."""
    exclusive.granted("ann")
    exclusive.queued("ben", session="early")
    lapse(exclusive, "ann")
    return exclusive


@both_ways
def test_what_only_the_dead_wait_for_is_granted(lapsed: Scripts, wait: bool) -> None:
    die(lapsed, "early")
    lapsed.redis.zadd(lapsed.key("queue"), {f"dead{number}": number for number in range(40)})
    lapsed.granted("cat", wait=wait)
    assert list(holders(lapsed)) == ["cat"]
    assert sessions(lapsed) == line(lapsed, "home") == []


@both_ways
def test_a_waiter_of_the_same_session_goes_first(lapsed: Scripts, wait: bool) -> None:
    answer = lapsed.grant("cat", session="early", wait=wait)
    assert isinstance(answer, Queued if wait else Busy)
    assert answer.mine == [Grant("ben", fence_of(lapsed, "ben"), TTL)]
    assert TTL - 1_000 < answer.busy_ms <= TTL
    assert line(lapsed, "early") == (["cat"] if wait else [])


@both_ways
def test_a_waiter_of_another_session_goes_first(lapsed: Scripts, wait: bool) -> None:
    with listening(lapsed, "early") as inbox:
        answer = lapsed.grant("cat", wait=wait)
        assert [message.who for message in inbox.messages()] == ["ben"]
    assert isinstance(answer, Queued if wait else Busy)
    assert not answer.mine
    assert list(holders(lapsed)) == ["ben"]
