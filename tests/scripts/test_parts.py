"""No script keeps the server for long: each looks at fifty entries, drops five hundred leases, and says "more" (W21).

Counted in commands, at sizes far beyond what one script may do. How long scripts take is for `python .bench slowest`.
"""

import pytest

from aiolocks._core.modes import SHARED
from aiolocks._grantors.wait_queue import _MAX_WAITERS
from bench.crowded import Situation, situations
from tests.scripts.calls import MORE, Busy, Scripts, entry, on_server, token, told_either_way
from tests.scripts.states import Message, holders, lapse, line, listening, sessions
from tests.scripts.test_costs import _cost

_SIZE = 1_100
_MOST = 1_100
"""Commands of one script: about a dozen for each entry that is looked at, or three for each waiter in a re-check."""

_EVERY = {f"{each.kind}: {each.called}": each for each in situations(_MAX_WAITERS)}


@pytest.mark.rest
@on_server
@pytest.mark.parametrize("called", _EVERY)
def test_no_script_runs_more_than_so_many_commands(backend: object, called: str) -> None:
    situation: Situation = _EVERY[called]
    for verb, act in situation.acts.items():
        scripts = Scripts(backend, situation.kind)  # type: ignore[arg-type]
        scripts.redis.flushall()
        situation.prepare(scripts, _SIZE)
        cost = _cost(scripts, lambda act=act, scripts=scripts: act(scripts, _SIZE))  # type: ignore[misc]
        assert cost.total() <= _MOST, (verb, cost)


@on_server
@pytest.mark.parametrize("count", [499, 500, 501, 1_100])
def test_waiters_are_counted_in_parts(held: Scripts, count: int) -> None:
    pipeline = held.redis.pipeline(transaction=False)
    pipeline.zadd(held.key("queue"), {f"s{number:04}": number + 1 for number in range(count)})
    for number in range(count):
        pipeline.zadd(held.key("waiters", session=f"s{number:04}"), {entry("ben"): 1, entry("cat"): 2})
    pipeline.execute()
    assert _cost(held, lambda: held.run("statistics", first=0))["zcard"] <= 501
    assert held.statistics().waiting == 2 * count


def _many_have_died(scripts: Scripts, count: int) -> None:
    scripts.redis.zadd(scripts.key("queue"), {f"dead{number:03}": number + 1 for number in range(count)})


def test_one_script_looks_at_fifty_dead_sessions(awaited_here: Scripts) -> None:
    _many_have_died(awaited_here, 120)
    assert awaited_here.release("ann").mine == [MORE]
    assert len(sessions(awaited_here)) == 71
    assert list(holders(awaited_here)) == []
    assert [grant.who for grant in awaited_here.all_of([MORE])] == ["ben"]


@pytest.mark.parametrize("wait", [True, False])
def test_no_verb_grants_past_a_queue_that_it_has_no_time_for(awaited: Scripts, wait: bool) -> None:
    """Those behind the dead have waited for longer than whoever asks."""
    _many_have_died(awaited, 70)
    lapse(awaited, "ann")
    with listening(awaited, "away") as inbox:
        answer = awaited.grant("cat", wait=wait)
        assert getattr(answer, "mine", None) == [MORE]
        assert wait or isinstance(answer, Busy)
        assert "cat" not in holders(awaited)
        assert awaited.all_of([MORE]) == []
        assert [message.who for message in inbox.messages()] == ["ben"]


@pytest.mark.parametrize("count", [49, 50, 51, 120])
def test_readers_come_in_by_fifties_and_more_is_said_only_where_one_is_left(rwlock: Scripts, count: int) -> None:
    rwlock.granted("ann")
    waiters = [f"w{number:03}w" for number in range(count)]
    for who in waiters:
        rwlock.queued(who, permits=SHARED)
    mine = rwlock.release("ann").mine
    assert [grant.who for grant in mine] == waiters[:50] + ["more"] * (count > 50)
    assert line(rwlock) == waiters[50:]
    assert [grant.who for grant in rwlock.all_of(mine)] == waiters


@told_either_way
def test_the_session_of_the_first_in_line_is_told_that_there_is_more(full: Scripts) -> None:
    """So it goes on if whoever released cannot."""
    for number in range(60):
        full.queued(f"w{number:03}w", permits=3)
    full.queued("zoe", session="away")
    with listening(full, "away") as away, listening(full, "home") as home:
        full.resize(2, session="third")
        told = home.messages()
        assert [message.fence for message in told] == 50 * [-1] + [-2]
        assert told[-1] == Message("more", -2, 0, full.keys.base)
        assert away.messages() == []
        full.release("ann", permits=3, session="third")
        assert [message.fence for message in home.messages()] == 10 * [-1]
        assert [message.who for message in away.messages()] == ["zoe"]


def test_leases_that_ran_out_are_dropped_by_five_hundreds(semaphore: Scripts) -> None:
    _lapsed(semaphore, 1_300, "1")
    semaphore.resize(1_300)
    _lapsed(semaphore, 1_300, "1")
    answer = semaphore.grant("ann", permits=1_300)
    assert MORE in getattr(answer, "mine", [])
    assert [grant.who for grant in semaphore.all_of([MORE])] == ["ann"]
    assert semaphore.statistics().permits == 1_300


@pytest.mark.parametrize("verb", ["renew", "release", "grant"])
@pytest.mark.parametrize("kind", ["semaphore", "rwlock"])
def test_a_lease_that_ran_out_is_none_though_it_was_not_dropped_yet(backend: object, kind: str, verb: str) -> None:
    """It is the last of many; until it is dropped, nobody else has what it had, and it does not have it either."""
    scripts = Scripts(backend, kind, limit=2_000)  # type: ignore[arg-type]
    scripts.granted("zoe", permits=1 if kind == "semaphore" else SHARED)
    _lapsed(scripts, 1_200, "1" if kind == "semaphore" else "3")
    last = f"w{1_199:04}w"
    if verb == "renew":
        assert not scripts.renew(last)
    elif verb == "release":
        assert not scripts.release(last).ended
    else:
        before = int(scripts.redis.hget(scripts.key("meta"), "fence"))
        answer = scripts.grant(last, permits=1 if kind == "semaphore" else SHARED)
        assert getattr(answer, "fence", 0) > before or not hasattr(answer, "fence")
    assert scripts.statistics().holders == (2 if verb == "grant" else 1)


def _lapsed(scripts: Scripts, count: int, share: str) -> None:
    """Have so many leases that ran out one after the other."""
    names = [f"w{number:04}w" for number in range(count)]
    scripts.redis.zadd(scripts.keys.base, {token(name): number + 1 for number, name in enumerate(names)})
    scripts.redis.hset(scripts.key("meta"), "fence", "7", mapping={token(name): f"{share} 7" for name in names})
    scripts.redis.hdel(scripts.key("meta"), "used")
