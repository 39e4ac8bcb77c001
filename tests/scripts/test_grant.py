"""`grant` of what is free, of what is held, and of what was granted before."""

from typing import Any

import pytest

from tests.scripts.calls import LIFE, TTL, Busy, Queued, Scripts, Withdrawn, token
from tests.scripts.states import contents, fence_of, holders, last_fence


@pytest.mark.parametrize("wait", [True, False])
def test_what_is_free_is_granted_for_the_ttl(exclusive: Scripts, wait: bool) -> None:
    exclusive.granted("ann", ttl_ms=7_000, wait=wait)
    assert holders(exclusive) == {"ann": pytest.approx(6_500, abs=500)}


def test_what_is_free_is_answered_with_the_fencing_token_alone(held: Scripts) -> None:
    """For a list, Redis and the client take longer."""
    held.release("ann")
    terms: dict[str, Any] = {"ttl_ms": TTL, "permits": held.usual, "ticket": 0, "life_ms": LIFE}
    if held.kind == "semaphore":
        terms |= {"limit": 1, "declare": 0}
    assert held.run("grant", who="ben", **terms) == fence_of(held, "ben")


def test_a_request_sent_twice_gets_the_same_grant_and_uses_up_one_fencing_token(exclusive: Scripts) -> None:
    granted = exclusive.granted("ann")
    before = last_fence(exclusive)
    assert exclusive.granted("ann") == granted
    assert last_fence(exclusive) == before == b"%d" % granted.fence
    assert fence_of(exclusive, "ann") == granted.fence
    assert list(holders(exclusive)) == ["ann"]
    assert not exclusive.redis.exists(exclusive.key("queue"), exclusive.key("waiters"))


def test_a_holder_that_asks_again_does_not_stand_in_line(awaited_here: Scripts) -> None:
    """However it came there: a turn of a token that has been released would be nobody's."""
    awaited_here.redis.zadd(awaited_here.key("waiters"), {awaited_here.entry("ann"): 5})
    awaited_here.granted("ann")
    assert [grant.who for grant in awaited_here.release("ann").mine] == ["ben"]


def test_a_busy_one_says_how_long_the_lease_lasts(exclusive: Scripts) -> None:
    exclusive.granted("ann", ttl_ms=7_000)
    queued = exclusive.queued("ben")
    busy = exclusive.grant("cat", wait=False)
    assert isinstance(busy, Busy)
    assert 6_000 < busy.busy_ms <= queued.busy_ms <= 7_000


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_a_request_overtaken_by_its_own_undo_is_not_granted(exclusive: Scripts, held: bool, wait: bool) -> None:
    if held:
        exclusive.granted("ann")
    exclusive.release("ben", tombstone_ms=60_000)
    before = contents(exclusive)
    assert exclusive.grant("ben", wait=wait) == Withdrawn()
    assert contents(exclusive) == before


@pytest.mark.parametrize("value", [b"plain-token", b"two words 5", b"", b" "])
@pytest.mark.parametrize("wait", [True, False])
def test_a_lock_is_held_by_whatever_lies_in_its_key(lock: Scripts, value: bytes, wait: bool) -> None:
    """Other libraries lock with SET NX and any text of their own."""
    lock.redis.set(lock.keys.base, value)
    answer = lock.grant("ann", wait=wait)
    assert isinstance(answer, Queued if wait else Busy)
    assert answer.busy_ms == -1, "it has no end"
    assert lock.redis.get(lock.keys.base) == value


def test_a_lock_with_a_plain_token_that_is_ours_is_granted_again(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, token("ann"), px=5_000)
    lock.granted("ann")
    assert lock.redis.get(lock.keys.base) == token("ann")
    assert holders(lock)["ann"] > 5_000
