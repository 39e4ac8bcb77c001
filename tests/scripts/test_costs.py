"""What a script costs, counted in Redis commands, and that it does not depend on how many wait."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from redis import Redis

from aiolocks._core.modes import SHARED
from bench.crowded import _hold
from tests.scripts.calls import LIFE, Kind, Scripts, on_server
from tests.scripts.states import die, holders, line, listening, sessions

pytestmark = on_server

_NOT_THE_SCRIPTS = {"eval", "info", "config|resetstat", "config"}


def _cost(scripts: Scripts, call: Callable[[], object]) -> Counter[str]:
    """Count the commands that *call* runs on the server."""
    scripts.redis.config_resetstat()
    call()
    statistics = scripts.redis.info("commandstats")
    counted = {name.removeprefix("cmdstat_"): values["calls"] for name, values in statistics.items()}
    return Counter({name: calls for name, calls in counted.items() if name not in _NOT_THE_SCRIPTS})


def _crowd(scripts: Scripts, session: str, size: int, *, start: int = 0) -> None:
    """Put *size* waiters into one session's line, alive for as long as it takes to make a thousand such lines."""
    entries = {scripts.entry(f"w{number}w"): start + number for number in range(1, size + 1)}
    key = scripts.key("waiters", session=session)
    scripts.redis.zadd(key, entries)
    scripts.redis.pexpire(key, 100 * LIFE)
    scripts.redis.zadd(scripts.key("queue"), {session: start + 1})
    if scripts.kind != "lock":
        scripts.redis.hset(scripts.key("meta"), "line", 1)


def _cost_the_same(scripts: Scripts, prepare: Callable[[int], object], act: Callable[[], object]) -> None:
    """Check that *act* costs the same beside few and beside many; ann holds."""
    costs = []
    for size in (10, 1_000):
        scripts.redis.flushall()
        scripts.granted("ann")
        prepare(size)
        costs.append(_cost(scripts, act))
    # An expiry is extended by the time that has passed, and so once more beside many, which took longer to prepare.
    expiries = [cost.pop("pexpire", 0) for cost in costs]
    assert costs[0] == costs[1]
    assert abs(expiries[0] - expiries[1]) <= 1


def test_a_lock_without_waiters_takes_so_many_commands(lock: Scripts) -> None:
    assert _cost(lock, lambda: lock.granted("ann", ttl_ms=5_000)) == {"exists": 1, "time": 1, "set": 2}
    assert _cost(lock, lambda: lock.renew("ann")) == {"get": 1, "pttl": 1, "pexpire": 1}
    assert _cost(lock, lambda: lock.release("ann")) == {"get": 1, "del": 1, "exists": 1}
    assert _cost(lock, lambda: lock.granted("ann")).total() == 4


@pytest.mark.parametrize(("kind", "brief", "most"), [
    ("lock", False, 12), ("semaphore", False, 18), ("rwlock", False, 23), ("lock", True, 7), ("semaphore", True, 8),
])  # fmt: skip
def test_getting_in_line_beside_others_takes_no_more_commands_than_these(
    backend: Redis, kind: Kind, brief: bool, most: int
) -> None:
    scripts = Scripts(backend, kind)
    scripts.granted("ann")
    scripts.queued("ben")
    total = _cost(scripts, lambda: scripts.grant("cat", brief=brief)).total()
    assert total == most or (total < most and not brief)


@pytest.mark.parametrize("others", [0, 1, 1_500])
@pytest.mark.parametrize(("kind", "share"), [("semaphore", 1), ("semaphore", 2), ("rwlock", SHARED)])
def test_an_acquire_and_a_release_take_at_most_ten_commands_whatever_others_hold(
    backend: Redis, kind: Kind, share: int, others: int
) -> None:
    """The least of three, as once a minute the hash is kept alive, and the set needs a longer life now and then."""
    scripts = Scripts(backend, kind, limit=10_000)
    if others > 1:
        _hold(scripts, others, share)
    if others:
        scripts.granted("zoe", permits=share)

    def pair() -> None:
        scripts.granted("ann", permits=share)
        scripts.release("ann", permits=share)

    pair()
    assert min(_cost(scripts, pair).total() for _ in range(3)) <= 10
    scripts.granted("ann", permits=share)
    renewal = _cost(scripts, lambda: scripts.renew("ann"))
    assert renewal.pop("pexpire") <= 2
    assert renewal == {"time": 1, "zadd": 1, "zscore": 1, "pttl": 1, "hmget": 1}


_HANDED_OVER = {
    ("lock", "home"): 10, ("lock", "away"): 14,
    ("semaphore", "home"): 14, ("semaphore", "away"): 17,
    ("rwlock", "home"): 18, ("rwlock", "away"): 21,
}  # fmt: skip


@pytest.mark.parametrize("where", ["home", "away"])
def test_a_hand_over_takes_about_a_dozen_commands(held: Scripts, where: str) -> None:
    _crowd(held, where, 10)
    if where == "away":
        held.queued("zoe")
    with listening(held, "away"):
        cost = _cost(held, lambda: held.release("ann", waits=where == "home"))
    assert cost.total() <= _HANDED_OVER[held.kind, where], cost


def test_even_a_short_line_is_kept_as_a_skip_list(lock: Scripts) -> None:
    """Packed, as Redis keeps up to 128 short entries, it would be read through for each one that comes or goes."""
    lock.granted("ann")
    lock.queued("ben", ttl_ms=100)
    assert lock.redis.object("encoding", lock.key("waiters")) in (b"skiplist", "skiplist")


@pytest.mark.parametrize("where", ["home", "away"])
def test_a_hand_over_costs_the_same_however_many_wait(exclusive: Scripts, where: str) -> None:
    with listening(exclusive, "away"):
        _cost_the_same(exclusive, lambda size: _crowd(exclusive, where, size), lambda: exclusive.release("ann"))
    assert (len(holders(exclusive)), len(line(exclusive, where))) == (1, 999)


def test_a_hand_over_costs_the_same_however_many_sessions_wait(exclusive: Scripts) -> None:
    def crowds(size: int) -> None:
        for number in range(size):
            _crowd(exclusive, f"s{number}", 1, start=number)

    with listening(exclusive, "s0"):
        _cost_the_same(exclusive, crowds, lambda: exclusive.release("ann"))
    assert len(sessions(exclusive)) == 999


def test_waiting_costs_the_same_however_many_wait(exclusive: Scripts) -> None:
    _cost_the_same(exclusive, lambda size: _crowd(exclusive, "home", size), lambda: exclusive.queued("zoe"))


@pytest.mark.parametrize("gone", ["dead", "unreachable"])
def test_getting_past_a_session_costs_the_same_however_many_wait_in_it(exclusive: Scripts, gone: str) -> None:
    """W2: thousands of entries used to be popped one by one."""

    def crowd(size: int) -> None:
        _crowd(exclusive, "away", size)
        if gone == "dead":
            die(exclusive, "away")
        exclusive.queued("zoe")

    _cost_the_same(exclusive, crowd, lambda: exclusive.release("ann"))
    assert list(holders(exclusive)) == ["zoe"]


def test_each_unreachable_session_costs_a_few_commands_once(exclusive: Scripts) -> None:
    costs = []
    for size in (100, 200):
        exclusive.redis.flushall()
        exclusive.granted("ann")
        for number in range(size):
            _crowd(exclusive, f"s{number}", 3, start=number)
        released = exclusive.release("ann")
        costs.append(_cost(exclusive, partial(exclusive.all_of, released.mine)).total())
        assert _cost(exclusive, lambda: exclusive.granted("zoe")).total() < 40
        assert len(line(exclusive, "s0")) == 3
    assert costs[1] - costs[0] <= 100 * 10
