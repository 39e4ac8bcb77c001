"""W22: of a server that has not been up for as long as is asked, nothing is had; and it is asked only where that is."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from aiolocks._core.modes import FRONT, UPGRADE, UPGRADEABLE
from aiolocks._redis.scripts import load
from tests.scripts.calls import LIFE, PADDING, TTL, Busy, Grant, Queued, Scripts, Young, on_server, token, upgrade_of
from tests.scripts.states import contents, fence_of, holders, lapse, limited_user, line, listening, sessions

pytestmark = on_server

MUCH = 1_000_000
"""Seconds of uptime that no server of a test has."""

_LONGEST_MS = 1000 * MUCH


def uptime(redis: Redis, at_least: int = 1) -> int:
    """Return the server's uptime, as soon as it has one of so many seconds."""
    asked: Any = redis
    give_up_at = time.monotonic() + 10
    while (seconds := int(asked.info("server")["uptime_in_seconds"])) < at_least:
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
    return seconds


@pytest.fixture
def up(exclusive: Scripts) -> int:
    """Seconds that the server has been up."""
    return uptime(exclusive.redis)


def in_line(scripts: Scripts, who: str, needed_s: int = MUCH) -> bytes:
    """Return how a waiter that asks for an uptime stands in line."""
    return scripts.entry(who).removesuffix(PADDING) + b" %d" % needed_s + PADDING


def left_ms(redis: Redis) -> range:
    """Return what may be said of how long the server is too young for what none has."""
    return range(_LONGEST_MS - 1000 * (uptime(redis) + 1), _LONGEST_MS + 1)


def info_calls(scripts: Scripts) -> int:
    """Return how often INFO was asked, but for this very time."""
    told = scripts.redis.info("commandstats").get("cmdstat_info", {"calls": 0})
    return int(told["calls"])


@pytest.mark.parametrize("wait", [True, False])
def test_a_free_name_is_granted_once_on_a_server_with_enough_uptime(exclusive: Scripts, up: int, wait: bool) -> None:
    for _ in range(2):
        granted = exclusive.granted("ann", wait=wait, needed_s=up)
        assert granted.fence == fence_of(exclusive, "ann")
    assert sessions(exclusive) == line(exclusive) == []


@pytest.mark.parametrize("session", ["home", "away"])
def test_a_waiter_that_needs_uptime_is_handed_the_lock_in_turn(held: Scripts, up: int, session: str) -> None:
    held.queued("ben", session=session, needed_s=up)
    held.queued("cat", session=session)
    with listening(held, "away") as inbox:
        mine = held.release("ann").mine
        told = [message.who for message in inbox.messages()]
    assert told + [grant.who for grant in mine] == list(holders(held)) == ["ben"]
    assert line(held, session) == ["cat"]


def test_the_uptime_is_read_once_for_all_waiters_that_are_granted_together(semaphore: Scripts) -> None:
    up = uptime(semaphore.redis)
    semaphore.granted("ann", permits=3)
    for who in ("ben", "cat", "dan"):
        semaphore.queued(who, needed_s=up)
    semaphore.redis.config_resetstat()
    assert [grant.who for grant in semaphore.release("ann", permits=3).mine] == ["ben", "cat", "dan"]
    assert info_calls(semaphore) == 1


def test_where_no_request_asks_for_an_uptime_none_is_looked_up(exclusive: Scripts) -> None:
    exclusive.redis.config_resetstat()
    exclusive.granted("ann", needed_s=0)
    exclusive.queued("ben")
    exclusive.recheck("ben")
    exclusive.renew("ann")
    exclusive.release("ann")
    exclusive.release("ben")
    exclusive.grant("cat", wait=False)
    assert info_calls(exclusive) == 0


def test_a_caller_is_queued_for_uptime_if_it_waits_and_learns_for_how_long(exclusive: Scripts) -> None:
    tried = exclusive.grant("ann", wait=False, needed_s=MUCH)
    assert isinstance(tried, Young)
    assert tried.busy_ms in left_ms(exclusive.redis)
    assert sessions(exclusive) == line(exclusive) == []
    assert exclusive.queued("ann", needed_s=MUCH).busy_ms in left_ms(exclusive.redis)
    assert exclusive.redis.zrange(exclusive.key("waiters"), 0, -1) == [in_line(exclusive, "ann")]
    assert holders(exclusive) == {}


def test_what_is_held_is_said_to_be_held_and_its_holder_that_asks_again_keeps_it(held: Scripts) -> None:
    assert isinstance(held.grant("ben", wait=False, needed_s=MUCH), Busy)
    assert isinstance(held.grant("ben", needed_s=MUCH), Queued)
    fence = fence_of(held, "ann")
    assert held.granted("ann", needed_s=MUCH).fence == fence
    assert held.granted("ann", wait=False, needed_s=MUCH, ttl_ms=TTL + 1).fence == fence


def test_none_passes_the_first_in_line_though_the_next_asks_for_no_uptime(exclusive: Scripts) -> None:
    """First come, first served: else whoever asks for it would wait for as long as others come."""
    exclusive.queued("ann", needed_s=MUCH)
    tried = exclusive.grant("ben", wait=False)
    assert isinstance(tried, Busy)
    assert tried.busy_ms in left_ms(exclusive.redis)
    with listening(exclusive, "home"):
        waits = exclusive.queued("ben", session="away")
        assert waits.busy_ms in left_ms(exclusive.redis)
        again = exclusive.recheck("ben", session="away")
    assert (again.mine, again.answers) == ([], [waits.ticket])
    assert again.busy_ms in left_ms(exclusive.redis)
    assert holders(exclusive) == {}


def test_a_waiter_for_uptime_that_leaves_the_queue_lets_the_next_have_the_lock(exclusive: Scripts) -> None:
    """What it asked for is part of how it stands there."""
    exclusive.queued("ann", needed_s=MUCH)
    exclusive.queued("ben")
    terms = f"{TTL} {exclusive.usual} {MUCH}"
    exclusive.run("release", who="ann", terms=terms, tombstone_ms=0, waits=1)
    assert line(exclusive) == []
    assert list(holders(exclusive)) == ["ben"]


@pytest.mark.rest
@pytest.mark.parametrize("verb", ["recheck", "release", "newcomer"])
def test_once_the_server_is_old_enough_the_first_waiter_has_the_lock(exclusive: Scripts, up: int, verb: str) -> None:
    queued = exclusive.queued("ann", needed_s=up + 2)
    assert 0 < queued.busy_ms <= 2000
    uptime(exclusive.redis, up + 2)
    if verb == "recheck":
        mine = exclusive.recheck(in_line(exclusive, "ann", up + 2)).mine
    elif verb == "release":
        mine = exclusive.release("zoe").mine
    else:
        mine = exclusive.queued("ben").mine
    assert mine == [Grant("ann", fence_of(exclusive, "ann"), TTL)]


def test_an_upgrade_waits_before_all_others(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    rwlock.queued("ben", session="away")
    upgrade = upgrade_of("ann")
    assert isinstance(rwlock.grant(upgrade, permits=UPGRADE, ticket=FRONT, wait=False, needed_s=MUCH), Young)
    assert isinstance(rwlock.grant(f"{upgrade}2", permits=UPGRADE, ticket=FRONT, needed_s=MUCH), Queued)
    assert list(holders(rwlock)) == ["ann"]
    assert sessions(rwlock) == ["home", "away"]


def test_what_others_free_is_kept_for_the_first_in_line(semaphore: Scripts) -> None:
    for who in ("ann", "ben"):
        semaphore.granted(who)
    semaphore.queued("cat", needed_s=MUCH)
    semaphore.queued("dan")
    assert semaphore.release("ann").mine == []
    assert semaphore.resize(9)[1] == []
    assert line(semaphore) == ["cat", "dan"]


@pytest.fixture
def limited(backend: Redis) -> Iterator[Redis]:
    """A client of a user that may not ask INFO."""
    with limited_user(backend, "-info") as client:
        yield client


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("state", ["free", "held", "awaited"])
def test_without_the_right_it_is_an_error_that_names_it_before_anything_is_written(
    exclusive: Scripts, limited: Redis, state: str, wait: bool
) -> None:
    if state != "free":
        exclusive.granted("ann")
    if state == "awaited":
        exclusive.queued("ben")
        lapse(exclusive, "ann")
    before = contents(exclusive)
    with pytest.raises(ResponseError, match=r"\+info"):
        exclusive.over(limited).grant("cat", wait=wait, needed_s=1)
    assert contents(exclusive) == before


def test_without_the_right_a_release_is_done_and_the_first_gets_it(held: Scripts, up: int, limited: Redis) -> None:
    held.queued("ben", needed_s=up)
    mine = held.over(limited)
    assert mine.release("ann").ended
    assert holders(held) == {}
    again = mine.recheck(session="away")
    assert again.mine == []
    assert again.busy_ms == 1000, "it looks again in due time, and not at once"
    held.recheck(in_line(held, "ben", up))
    assert list(holders(held)) == ["ben"]


def test_an_older_version_finds_in_the_line_what_it_looks_for(held: Scripts) -> None:
    """It reads an entry's first three words, and hands over whatever the uptime."""
    held.queued("ben", needed_s=MUCH)
    source = load(f"{held.family}/release").source
    for here, before in ((b" ?(%d*)')", b"')"), (b"needed_s ~= ''", b"needed_s")):
        assert here in source
        source = source.replace(here, before)
    names = ("holder", "fence") if held.kind == "lock" else ("holders", "meta")
    key_names = [held.key(name) for name in (*names, "queue", "waiters")]
    args = (token("ann"), f"{TTL} {held.usual}", 0, f"home {LIFE} aiolocks:wake:")
    held.redis.eval(source, len(key_names), *key_names, *args)
    assert list(holders(held)) == ["ben"]


def vote(redis: Redis, number: int, *needed_s: int) -> int:
    answer: int = redis.eval(load("redlock/raise").source, 2, "agreed", "fence", "one", number, *needed_s)  # type: ignore[arg-type]  # redis-py knows no bytes here
    return answer


def test_only_a_server_that_is_old_enough_and_may_be_asked_has_a_vote(backend: Redis, limited: Redis) -> None:
    with pytest.raises(ResponseError, match=r"\+info"):
        vote(limited, 7, 1)
    assert -vote(backend, 7, MUCH) in left_ms(backend)
    assert backend.dbsize() == 0
    assert vote(backend, 7, uptime(backend)) == 0
    assert vote(backend, 6, 1) == 7
    up = answer = 0
    while up != uptime(backend):  # until a whole try falls into one second of the server
        up = uptime(backend)
        answer = vote(backend, 6, up + 1)
    assert answer == -1000
