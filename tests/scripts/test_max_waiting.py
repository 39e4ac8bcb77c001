"""W26: a newcomer that comes with a bound is refused if as many wait, and then nothing of it stays."""

import pytest

from tests.scripts import older
from tests.scripts.calls import LIFE, Scripts, Withdrawn, Young, on_server
from tests.scripts.states import configured, contents, holders, lapse, line, listening, mark

BOUND = 500
"""Sessions that one script counts."""


def crowd(scripts: Scripts, *sizes: int, start: int = 0) -> None:
    """Let so many wait in each of as many sessions, before all others."""
    for number, size in enumerate(sizes, start):
        key = scripts.key("waiters", session=f"s{number}")
        scripts.redis.zadd(
            key, {scripts.entry(f"s{number}w{each}"): 10**9 + number * 1000 + each for each in range(size)}
        )
        scripts.redis.pexpire(key, LIFE)
        scripts.redis.zadd(scripts.key("queue"), {f"s{number}": 10**9 + number * 1000})
    scripts.redis.pexpire(scripts.key("queue"), LIFE)


def test_a_token_that_is_in_line_is_never_refused(held: Scripts) -> None:
    """Its first reply was lost. Refused, it would stay in line."""
    ticket = held.queued("ben", most=1).ticket
    assert held.queued("ben", most=1).ticket == ticket
    assert held.queued("ben", most=0).ticket == ticket
    held.queued("cat")
    assert held.queued("ben", most=1).ticket == ticket


def test_the_number_that_wait_in_each_session_counts(held: Scripts) -> None:
    crowd(held, 1, 7, 1)
    assert held.full("cat", 9).waiting == 9
    held.queued("cat", most=10)


def test_however_many_dead_sessions_do_not_fill_a_queue(lock: Scripts) -> None:
    """W2: nothing is handed over while the name is held, so nothing else takes them out."""
    lock.granted("ann")
    lock.redis.zadd(lock.key("queue"), {f"dead{number}": number + 1 for number in range(BOUND + 1)})
    crowd(lock, 1)
    assert lock.full("cat", 1).waiting == 1
    lock.queued("cat", most=2)
    assert lock.redis.zcard(lock.key("queue")) <= 3


def test_more_sessions_than_one_script_counts_are_a_full_queue(lock: Scripts) -> None:
    lock.granted("ann")
    crowd(lock, *[1] * BOUND)
    lock.queued("ben", session="s7", most=10**9)
    crowd(lock, 1, start=BOUND)
    assert lock.full("cat", 10**9).waiting == BOUND + 1
    lock.full("cat", BOUND)


def test_what_is_free_is_handed_over_before_a_newcomer_is_refused(exclusive: Scripts) -> None:
    """W7: otherwise it stays free until a re-check."""
    exclusive.granted("ann")
    for who in ("ben", "cat"):
        exclusive.queued(who, session="away")
    lapse(exclusive, "ann")
    with listening(exclusive, "away") as inbox:
        exclusive.full("dan", 1)
        assert [message.who for message in inbox.messages()] == ["ben"]
    assert list(holders(exclusive)) == ["ben"]


def test_a_newcomer_that_does_not_fit_has_the_room_of_a_waiter_that_does(rwlock: Scripts) -> None:
    rwlock.granted("ann")
    rwlock.queued("ben", permits=3)
    rwlock.redis.zrem(rwlock.key("queue"), "home")
    rwlock.downgrade("ann", 3, session="away")
    assert [each.who for each in rwlock.queued("cat", most=1).mine] == ["ben"]
    assert line(rwlock) == ["cat"]
    rwlock.queued("dan", most=1, session="away")  # as cat's session does not listen


@pytest.mark.parametrize("exclusive", ["semaphore", "rwlock"], indirect=True)
def test_waiters_that_a_refused_newcomer_brings_back_are_served_by_the_next_release(exclusive: Scripts) -> None:
    """W2: they were passed over, and a release since then has noted that none waits."""
    exclusive.granted("ann", session="away")
    exclusive.queued("ben")
    for who, successor in [("ann", "cat"), ("cat", "dan")]:
        exclusive.release(who, session="away")
        exclusive.granted(successor, session="away")
    with listening(exclusive, "home") as inbox:
        exclusive.full("eve", 1)
        exclusive.release("dan", session="away")
        assert [message.who for message in inbox.messages()] == ["ben"]


@pytest.mark.parametrize("session", ["home", "away"])
def test_what_an_older_version_released_is_no_reason_to_refuse(semaphore: Scripts, session: str) -> None:
    """W21: the holders are counted before a request is refused."""
    semaphore.granted("ann", permits=2)
    semaphore.granted("bob")
    semaphore.queued("ben", session=session)
    older.release(semaphore, "ann")
    with listening(semaphore, session):
        semaphore.granted("eve", most=1)


def test_a_token_that_holds_is_never_refused_though_the_hash_was_deleted(semaphore: Scripts) -> None:
    """P6: its first reply was lost."""
    semaphore.resize(10)
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben", permits=8)
    semaphore.redis.delete(semaphore.key("meta"))
    semaphore.granted("ben", permits=8, limit=10)
    semaphore.queued("cat", session="away", limit=10)
    semaphore.granted("ann", permits=2, limit=10, most=0)


def test_a_withdrawn_or_revoked_token_is_told_so(held: Scripts) -> None:
    held.release("ben", tombstone_ms=60_000)
    assert held.grant("ben", most=0) == Withdrawn()
    mark(held, "ann")
    assert held.grant("ann", most=0) == Withdrawn()


def test_a_name_that_cools_down_has_a_queue(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.release("ann", min_hold_ms=20_000)
    assert 19_000 < exclusive.full("ben", 0).busy_ms <= 20_000
    exclusive.queued("ben", most=1)
    exclusive.full("cat", 1)


@on_server
def test_a_young_server_queues_as_many_as_may_wait(exclusive: Scripts) -> None:
    assert isinstance(exclusive.grant("zoe", wait=False, needed_s=10**6), Young)
    assert exclusive.full("ben", 0, needed_s=10**6).busy_ms > 10**8
    assert exclusive.queued("ben", most=1, needed_s=10**6).busy_ms > 10**8
    exclusive.full("cat", 1, needed_s=10**6)
    assert holders(exclusive) == {}


@on_server
def test_at_the_memory_limit_a_refusal_is_one_and_room_is_an_error_that_changes_nothing(held: Scripts) -> None:
    """W9: the line is written first."""
    held.queued("ben")
    with configured(held, maxmemory=1, maxmemory_policy="noeviction"):
        assert held.full("cat", 1).waiting == 1
        with pytest.raises(Exception, match="used memory"):
            held.grant("cat", most=2)
    assert line(held) == ["ben"]


@pytest.mark.parametrize("field", ["queue", "waiters"])
def test_a_key_of_another_type_is_an_error_before_anything_changes(held: Scripts, field: str) -> None:
    held.redis.rpush(held.key(field), "another program's")
    before = contents(held)
    with pytest.raises(Exception, match="WRONGTYPE"):
        held.grant("ben", most=3)
    assert contents(held) == before
