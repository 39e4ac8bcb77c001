"""Fencing tokens that several servers agree on: what each accepts and refuses."""

import pytest
from redis import Redis

from aiolocks._redis.scripts import load

pytest_plugins = ["tests.scripts.fixtures"]

DAY_MS = 86_400_000


def propose(backend: Redis, token: str, number: int) -> int:
    answer: int = backend.eval(load("redlock/raise").source, 2, "agreed", "fence", token, number)  # type: ignore[arg-type]  # redis-py knows no bytes here
    return answer


def test_a_first_token_is_accepted(backend: Redis) -> None:
    assert propose(backend, "one", 7) == 0


def test_a_larger_token_is_accepted(backend: Redis) -> None:
    propose(backend, "one", 7)
    assert propose(backend, "two", 8) == 0


def test_a_smaller_token_is_refused_with_the_larger_one(backend: Redis) -> None:
    propose(backend, "one", 8)
    assert propose(backend, "two", 7) == 8


def test_the_same_token_is_refused_to_somebody_else(backend: Redis) -> None:
    propose(backend, "one", 7)
    assert propose(backend, "two", 7) == 7


def test_the_same_request_twice_is_accepted_twice(backend: Redis) -> None:
    assert [propose(backend, "one", 7) for _ in range(2)] == [0, 0]


def test_the_servers_own_grants_go_on_from_what_was_accepted(backend: Redis) -> None:
    backend.set("fence", 5)
    propose(backend, "one", 7)
    assert backend.get("fence") == b"7"


def test_the_servers_own_grants_are_never_set_back(backend: Redis) -> None:
    backend.set("fence", 9)
    assert propose(backend, "one", 7) == 0
    assert backend.get("fence") == b"9"


@pytest.mark.parametrize("number", [1_763_733_600_000_000, 2**53 - 1])
def test_tokens_of_the_clocks_size_are_kept_to_the_digit(backend: Redis, number: int) -> None:
    propose(backend, "one", number)
    assert backend.get("agreed") == f"{number} one".encode()
    assert propose(backend, "two", number) == number
    assert propose(backend, "two", number - 1) == number


def test_what_was_accepted_is_kept_for_a_day(backend: Redis) -> None:
    propose(backend, "one", 7)
    for key in ("agreed", "fence"):
        left = backend.pttl(key)
        assert isinstance(left, int)
        assert DAY_MS - 5000 < left <= DAY_MS


def test_statistics_tell_whether_it_is_held_and_the_last_token_that_was_accepted(backend: Redis) -> None:
    def told() -> object:
        return backend.eval(load("redlock/statistics").source, 2, "agreed", "holder")  # type: ignore[arg-type]

    assert told() == [0, 0]
    propose(backend, "one", 1_763_733_600_000_000)
    assert told() == [0, 1_763_733_600_000_000]
    backend.set("holder", "one 7")
    assert told() == [1, 1_763_733_600_000_000]
