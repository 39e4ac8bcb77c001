"""Fencing tokens: they grow with every grant of a name, whatever was forgotten meanwhile (P8)."""

import pytest

from tests.scripts.calls import DAY_MS, FAR, TTL, Scripts
from tests.scripts.states import fence_of, last_fence, listening, now_us, pttl, set_last_fence


@pytest.mark.parametrize("exclusive", ["semaphore", "rwlock"], indirect=True)
def test_a_request_repeated_after_the_hash_was_deleted_gets_a_greater_fencing_token(exclusive: Scripts) -> None:
    """Not 0: the resource would refuse all that it writes, or take it from everybody."""
    fence = exclusive.granted("ann").fence
    exclusive.redis.delete(exclusive.key("meta"))
    again = exclusive.granted("ann").fence
    assert again > fence
    assert last_fence(exclusive) == b"%d" % again
    assert exclusive.granted("ann").fence == again
    assert exclusive.recheck("ann").answers == [-again]
    assert exclusive.statistics().permits == 1
    exclusive.release("ann")
    assert exclusive.granted("ben").fence > again


def test_a_token_and_the_terms_are_published_as_digits(exclusive: Scripts) -> None:
    month_ms = 30 * DAY_MS
    exclusive.granted("ann")
    exclusive.queued("ben", session="away", ttl_ms=month_ms)
    with listening(exclusive, "away") as inbox:
        exclusive.release("ann")
        [text] = inbox.texts()
    assert text.split(b" ")[1:3] == [b"%d" % fence_of(exclusive, "ben"), b"%d" % month_ms]


def test_the_next_of_the_session_gets_a_greater_token_though_the_clock_stepped_back(exclusive: Scripts) -> None:
    set_last_fence(exclusive, FAR)
    assert exclusive.granted("ann").fence == FAR + 1
    assert exclusive.queued("ben").ticket < exclusive.queued("cat").ticket
    assert [grant.fence for grant in exclusive.release("ann", waits=True).mine] == [FAR + 2]


def test_a_hand_over_keeps_the_last_token_for_another_day(exclusive: Scripts) -> None:
    kept_in = exclusive.key("fence" if exclusive.kind == "lock" else "meta")
    exclusive.granted("ann")
    exclusive.queued("ben")
    assert DAY_MS - 60_000 < pttl(exclusive, kept_in) <= DAY_MS
    exclusive.redis.pexpire(kept_in, TTL)
    set_last_fence(exclusive, now_us(exclusive) - 60_000_000)  # the hash is kept alive once a minute
    exclusive.release("ann")
    assert pttl(exclusive, kept_in) > DAY_MS - 60_000
