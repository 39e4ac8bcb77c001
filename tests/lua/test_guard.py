"""`guard` runs a holder's commands once, and nobody else's; what it answered last is kept for a while."""

from typing import Any

import pytest
from redis import Redis

from aiolocks._keys import Keys
from aiolocks._scripts import load
from tests.lua.calls import TTL, token

pytest_plugins = ["tests.lua.fixtures"]

TAKEN, OVERTAKEN = 0, -1


class Guarded:
    """A name that ann holds, made by hand, as the scripts that do it are tested elsewhere."""

    def __init__(self, redis: Redis, kind: str) -> None:
        self.redis: Any = redis
        self._script = load(f"{kind}_guard")
        self.keys = Keys("aiolocks:", kind, "orders:42")
        self.record = self.keys.part(b"g:" + token("ann"))
        if kind == "lock":
            self.redis.set(self.keys.base, token("ann") + b" 1", px=TTL)
        else:
            seconds, _ = self.redis.time()
            self.redis.zadd(self.keys.base, {token("ann"): 1000 * seconds + TTL})

    def run(self, *commands: tuple[object, ...], number: int = 1, who: str = "ann") -> Any:
        words = [word for command in commands for word in (len(command), *command)]
        record = self.keys.part(b"g:" + token(who))
        return self.redis.eval(self._script.source, 2, self.keys.base, record, token(who), number, 60_000, *words)


@pytest.fixture(params=["lock", "semaphore"])
def guarded(request: pytest.FixtureRequest, backend: Redis) -> Guarded:
    return Guarded(backend, request.param)


def test_the_holders_commands_are_run_and_answered_in_redis_own_protocol(guarded: Guarded) -> None:
    answer = guarded.run(("SET", "k", "v"), ("APPEND", "k", "\r\n"), ("GET", "k"), ("GET", "no"), ("MGET", "k", "no"))
    assert answer == b"*5\r\n+OK\r\n:3\r\n$3\r\nv\r\n\r\n$-1\r\n*2\r\n$3\r\nv\r\n\r\n$-1\r\n"


@pytest.mark.parametrize("stranger", ["ben", "an", "annn"])
def test_nobody_elses_are(guarded: Guarded, stranger: str) -> None:
    assert guarded.run(("SET", "k", "v"), who=stranger) == TAKEN
    assert guarded.redis.keys() == [guarded.keys.base]


def test_nor_are_a_former_holders(guarded: Guarded) -> None:
    guarded.redis.delete(guarded.keys.base)
    assert guarded.run(("SET", "k", "v")) == TAKEN
    assert guarded.redis.keys() == []


def test_a_run_that_is_sent_again_is_answered_as_before_and_not_repeated(guarded: Guarded) -> None:
    first = guarded.run(("INCR", "n"))
    assert guarded.run(("INCR", "n")) == first == b"*1\r\n:1\r\n"
    assert guarded.run(("INCR", "n"), number=2) == b"*1\r\n:2\r\n"
    assert guarded.redis.get("n") == b"2"


def test_a_run_that_was_carried_out_is_answered_though_the_lease_is_over(guarded: Guarded) -> None:
    first = guarded.run(("INCR", "n"))
    guarded.redis.delete(guarded.keys.base)
    assert guarded.run(("INCR", "n")) == first
    assert guarded.run(("INCR", "n"), number=2) == TAKEN


def test_a_run_that_comes_after_a_later_one_comes_to_nothing(guarded: Guarded) -> None:
    guarded.run(("INCR", "n"), number=9)
    guarded.run(("INCR", "n"), number=10)
    assert guarded.run(("INCR", "n"), number=9) == OVERTAKEN
    assert guarded.redis.get("n") == b"2"


def test_the_commands_behind_an_error_are_not_run(guarded: Guarded) -> None:
    answer = guarded.run(("SET", "k", "v"), ("INCR", "k"), ("SET", "k", "w"))
    assert answer.startswith(b"*2\r\n+OK\r\n-ERR")
    assert guarded.redis.get("k") == b"v"
    assert guarded.run(("SET", "k", "again")) == answer


def test_what_was_answered_is_kept_for_as_long_as_it_may_be_asked_for(guarded: Guarded) -> None:
    guarded.run(("PING",))
    assert 59_000 < guarded.redis.pttl(guarded.record) <= 60_000


@pytest.mark.redis
@pytest.mark.parametrize("backend", ["server"], indirect=True)
def test_at_the_memory_limit_nothing_is_half_done(guarded: Guarded) -> None:
    guarded.redis.set("k", "v")
    guarded.redis.config_set("maxmemory", 1)
    try:
        assert guarded.run(("SET", "k", "w"), ("SET", "l", "w")).startswith(b"*1\r\n-OOM")
        assert guarded.redis.exists(guarded.record) == 0, "so that it may be run again"
        assert guarded.run(("DEL", "k"), ("SET", "l", "w")) == b"*2\r\n:1\r\n+OK\r\n"
        assert guarded.redis.exists(guarded.record) == 1
    finally:
        guarded.redis.config_set("maxmemory", 0)
