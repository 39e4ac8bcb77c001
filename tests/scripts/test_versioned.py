"""A value in a plain key is written if it has the version that the writer has seen; the same write is done once."""

from typing import Any

import pytest
from redis import Redis

from aiolocks._redis.scripts import load


class Value:
    """A value, and what is beside it."""

    def __init__(self, redis: Redis) -> None:
        self.redis: Any = redis

    def read(self) -> tuple[bytes | None, bytes]:
        value, version = self.redis.eval(load("versioned/read").source, 2, "value", "mark")
        return value, version

    def write(self, new: str, expected: bytes, write: str, expire_ms: int = 0) -> tuple[int, bytes]:
        outcome, version = self.redis.eval(
            load("versioned/write").source, 3, "value", "mark", f"done {write}",
            expected, new, write, expire_ms, 86_400_000, 60_000,
        )  # fmt: skip
        return outcome, version


@pytest.fixture
def value(backend: Redis) -> Value:
    return Value(backend)


def test_the_write_script_leaves_keys_that_lapse_beside_the_value(value: Value) -> None:
    value.write("one", value.read()[1], "w1", expire_ms=5_000)
    assert 4_000 < value.redis.pttl("value") <= 5_000
    assert 59_000 < value.redis.pttl("done w1") <= 60_000
    assert 86_399_000 < value.redis.pttl("mark") <= 86_400_000


def test_a_write_that_says_nothing_of_an_end_keeps_the_one_there_is(value: Value) -> None:
    _, version = value.write("one", value.read()[1], "w1", expire_ms=60_000)
    assert value.write("two", version, "w2") == value.write("two", version, "w2"), "once"
    assert 0 < value.redis.pttl("value") <= 60_000
    value.redis.persist("value")
    value.write("three", value.read()[1], "w3")
    assert value.redis.pttl("value") == -1
