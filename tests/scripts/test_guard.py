"""`guard` runs a holder's commands once, and nobody else's; what it answered last is kept for a while."""

from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from aiolocks._core.keys import Keys
from aiolocks._redis.scripts import load
from tests.scripts.calls import TTL, on_server, token
from tests.scripts.states import demoted

GONE_FROM_SERVER, OVERTAKEN, REVOKED = 0, -1, -2


class Guarded:
    """Names that ann holds, made by hand, as the scripts that do it are tested elsewhere."""

    def __init__(self, redis: Redis, kind: str, names: int) -> None:
        self.redis: Any = redis
        self._kind = kind
        self._script = load(f"{kind}/guard")
        self._names = [Keys("aiolocks:", kind, f"orders:{number}") for number in range(names)]
        self.holders = [keys.base for keys in self._names]
        self.record = self._record_of("ann")
        for holder in self.holders:
            self.give(holder, "ann")

    def give(self, holder: bytes, who: str) -> None:
        """Have *who* hold a name alone, from now on."""
        self.redis.delete(holder)
        if self._kind == "lock":
            self.redis.set(holder, token(who) + b" 1", px=TTL)
        else:
            seconds, _ = self.redis.time()
            self.redis.zadd(holder, {token(who): 1000 * seconds + TTL})

    def mark(self, at: int, mark: str) -> None:
        """Mark ann's lease of one of the names."""
        if self._kind == "lock":
            self.redis.set(self.holders[at], token("ann") + f" 1 {mark}".encode(), px=TTL)
        else:
            self.redis.hset(self._names[at].part(b"meta"), token("ann"), f"1 1 {mark}")

    def run(self, *commands: tuple[object, ...], number: int = 1, who: str = "ann") -> Any:
        words = [word for command in commands for word in (len(command), *command)]
        beside = [keys.part(b"meta") for keys in self._names] if self._kind == "semaphore" else []
        held = [key for pair in zip(self.holders, beside, strict=True) for key in pair] if beside else self.holders
        keys = [self._record_of(who), *held]
        tokens = [token(who)] * len(self.holders)
        return self.redis.eval(self._script.source, len(keys), *keys, number, 60_000, len(tokens), *tokens, *words)

    def _record_of(self, who: str) -> bytes:
        return self._names[0].part(b"g:" + token(who))


@pytest.fixture(params=["lock", "semaphore"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whether one holds a name, or any number."""
    return str(request.param)


@pytest.fixture(params=[1, 3])
def guarded(request: pytest.FixtureRequest, backend: Redis, kind: str) -> Guarded:
    """One name, or several that are one lease."""
    return Guarded(backend, kind, request.param)


@pytest.fixture
def several(backend: Redis, kind: str) -> Guarded:
    return Guarded(backend, kind, 3)


def test_the_holders_commands_are_run_and_answered_in_redis_own_protocol(guarded: Guarded) -> None:
    answer = guarded.run(("SET", "k", "v"), ("APPEND", "k", "\r\n"), ("GET", "k"), ("GET", "no"), ("MGET", "k", "no"))
    assert answer == b"*5\r\n+OK\r\n:3\r\n$3\r\nv\r\n\r\n$-1\r\n*2\r\n$3\r\nv\r\n\r\n$-1\r\n"


@pytest.mark.parametrize("stranger", ["ben", "an", "annn"])
def test_commands_with_the_token_of_another_caller_are_not_run(guarded: Guarded, stranger: str) -> None:
    assert guarded.run(("SET", "k", "v"), who=stranger) == GONE_FROM_SERVER
    assert sorted(guarded.redis.keys()) == guarded.holders


@pytest.mark.parametrize("which", range(3))
def test_commands_of_a_holder_with_a_revoked_name_are_not_run(several: Guarded, which: int) -> None:
    several.mark(which, "R")
    before = sorted(several.redis.keys())
    assert several.run(("SET", "k", "v")) == REVOKED
    assert several.run(("SET", "k", "v"), who="ben") == GONE_FROM_SERVER
    assert sorted(several.redis.keys()) == before


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("given", [True, False])
def test_commands_of_a_holder_of_all_names_except_one_are_not_run(several: Guarded, which: int, given: bool) -> None:
    several.redis.delete(several.holders[which])
    if given:
        several.give(several.holders[which], "ben")
    before = sorted(several.redis.keys())
    assert several.run(("SET", "k", "v")) == GONE_FROM_SERVER
    assert sorted(several.redis.keys()) == before


@pytest.mark.parametrize("which", range(4))
def test_a_key_of_another_type_is_an_error_and_nothing_is_written(several: Guarded, which: int) -> None:
    spoilt = [several.record, *several.holders][which]
    several.redis.delete(spoilt)
    several.redis.rpush(spoilt, "a list of somebody else's")
    before = sorted(several.redis.keys())
    with pytest.raises(ResponseError, match="wrong kind of value"):
        several.run(("SET", "k", "v"))
    assert sorted(several.redis.keys()) == before
    assert several.redis.lrange(spoilt, 0, -1) == [b"a list of somebody else's"]


def test_a_run_that_is_sent_again_is_answered_as_before_and_not_repeated(guarded: Guarded) -> None:
    first = guarded.run(("INCR", "n"))
    assert guarded.run(("INCR", "n")) == first == b"*1\r\n:1\r\n"
    assert 59_000 < guarded.redis.pttl(guarded.record) <= 60_000
    assert guarded.run(("INCR", "n"), number=2) == b"*1\r\n:2\r\n"
    assert guarded.redis.get("n") == b"2"


def test_a_run_that_was_carried_out_is_answered_though_the_lease_is_over(guarded: Guarded) -> None:
    first = guarded.run(("INCR", "n"))
    guarded.redis.delete(*guarded.holders)
    assert guarded.run(("INCR", "n")) == first
    assert guarded.run(("INCR", "n"), number=2) == GONE_FROM_SERVER


def test_a_run_that_comes_after_a_later_one_comes_to_nothing(guarded: Guarded) -> None:
    guarded.run(("INCR", "n"), number=9)
    guarded.run(("INCR", "n"), number=10)
    assert guarded.run(("INCR", "n"), number=9) == OVERTAKEN
    assert guarded.redis.get("n") == b"2"


@on_server
def test_a_guard_costs_one_command_for_each_name_and_two_for_the_record(several: Guarded) -> None:
    several.redis.config_resetstat()
    several.run(("INCR", "n"))
    calls = {name: values["calls"] for name, values in several.redis.info("commandstats").items()}
    looks = (
        {"cmdstat_zscore": 3, "cmdstat_time": 1, "cmdstat_get": 1} if "cmdstat_time" in calls else {"cmdstat_get": 4}
    )
    assert calls.items() >= {**looks, "cmdstat_incr": 1, "cmdstat_set": 1}.items()


def test_the_commands_behind_an_error_are_not_run(guarded: Guarded) -> None:
    answer = guarded.run(("SET", "k", "v"), ("INCR", "k"), ("SET", "k", "w"))
    assert answer.startswith(b"*2\r\n+OK\r\n-ERR")
    assert guarded.redis.get("k") == b"v"
    assert guarded.run(("SET", "k", "again")) == answer


@on_server
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


@on_server
def test_a_server_that_became_a_replica_says_so_and_answers_nothing(guarded: Guarded) -> None:
    """Even what only reads: it may have been overtaken by writes at the new primary."""
    guarded.redis.set("k", "v")
    with demoted(guarded), pytest.raises(ResponseError, match=r"READONLY|read only replica"):
        guarded.run(("GET", "k"))  # Redis 6.2 says that a script failed
