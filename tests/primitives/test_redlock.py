"""What a Redlock refuses, before any I/O: fewer or other servers than it can do with, and permits."""

from typing import Any, cast

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Redlock, Semaphore

A, B, C = (Redis(port=port) for port in (1, 2, 3))


def test_any_number_of_different_servers_is_fine() -> None:
    for clients in ([A], [A, B], [A, B, C], (A, B, C), iter([A, B])):
        assert repr(Redlock(clients, "orders")) == "<Redlock 'orders'>"


def test_no_clients_are_an_error() -> None:
    with pytest.raises(ValueError, match="clients"):
        Redlock([], "orders")


def test_one_client_that_is_no_list_is_an_error_that_names_the_lock_for_it() -> None:
    with pytest.raises(TypeError, match="Lock"):
        Redlock(cast("Any", A), "orders")


def test_two_clients_of_one_server_are_an_error() -> None:
    with pytest.raises(ValueError, match="two votes"):
        Redlock([A, B, Redis(port=1)], "orders")


def test_a_client_that_is_none_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"redis\.asyncio"):
        Redlock(cast("Any", [A, "redis://localhost"]), "orders")


@pytest.mark.parametrize("word", ["limit", "permits"])
def test_permits_on_several_servers_are_refused_with_the_reason(word: str) -> None:
    with pytest.raises(TypeError, match="AB, BC and AC all win"):
        cast("Any", Redlock)([A, B, C], "orders", **{word: 2})


def test_a_semaphore_on_several_servers_is_refused_with_the_reason() -> None:
    with pytest.raises(TypeError, match="AB, BC and AC all win"):
        Semaphore(cast("Any", [A, B, C]), "orders", 2)


def test_a_lock_on_several_servers_is_an_error_that_names_the_redlock() -> None:
    with pytest.raises(TypeError, match="Redlock"):
        Lock(cast("Any", [A, B, C]), "orders")
