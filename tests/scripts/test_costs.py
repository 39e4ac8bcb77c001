"""What a script costs, counted in Redis commands, and that it does not depend on how many wait."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest
from redis import Redis

from tests.scripts.calls import LIFE, Scripts, on_server, token
from tests.scripts.states import die, holders, line, listening, sessions

pytestmark = on_server

_NEVER_MS = 9_000_000_000_000
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


_IN_LINE = {"lock": 12, "semaphore": 18, "rwlock": 23}


def test_getting_in_line_beside_others_takes_no_more_commands_than_these(awaited_here: Scripts) -> None:
    assert _cost(awaited_here, lambda: awaited_here.queued("cat")).total() <= _IN_LINE[awaited_here.kind]


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_a_short_answer_takes_few_commands(backend: Redis, kind: Literal["lock", "semaphore"]) -> None:
    scripts = Scripts(backend, kind)
    scripts.granted("ann")
    scripts.queued("ben")
    assert _cost(scripts, lambda: scripts.grant("cat", brief=True)).total() == {"lock": 7, "semaphore": 8}[kind]


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


def test_a_semaphore_costs_the_same_however_many_hold_single_permits(backend: Redis) -> None:
    semaphore = Scripts(backend, "semaphore", limit=1_000)
    semaphore.granted("zoe")

    def pair() -> list[Counter[str]]:
        return [
            _cost(semaphore, lambda: semaphore.granted("ann")),
            _cost(semaphore, lambda: semaphore.renew("ann")),
            _cost(semaphore, lambda: semaphore.release("ann")),
        ]

    costs = []
    for size in (10, 500):
        semaphore.redis.zadd(semaphore.keys.base, {token(f"h{number}h"): _NEVER_MS for number in range(size)})
        pair()  # which counts anew
        pairs = [pair(), pair()]  # once a minute a grant keeps the hash alive, which is a command more
        costs.append(min(pairs, key=lambda costs: costs[0].total()))
    assert costs[0] == costs[1]
