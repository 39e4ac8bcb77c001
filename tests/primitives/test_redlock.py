"""What a Redlock refuses, before any I/O: fewer or other servers than it can do with, and permits."""

from typing import Any, cast

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Redlock, Semaphore
from tests.support.cases import one_by_one

A, B, C = (Redis(port=port) for port in (1, 2, 3))


def test_any_number_of_different_servers_is_fine() -> None:
    for clients in ([A], [A, B], [A, B, C], (A, B, C), iter([A, B])):
        assert repr(Redlock(clients, "orders")) == "<Redlock 'orders'>"


@one_by_one("clients, error, says", [
    ([], ValueError, "clients"), (A, TypeError, "Lock"), ([A, B, Redis(port=1)], ValueError, "two votes"),
    ([A, "redis://localhost"], TypeError, r"redis\.asyncio"),
])  # fmt: skip
def test_fewer_or_other_servers_are_an_error(clients: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Redlock(clients, "orders")


def test_other_primitives_on_several_servers_are_refused_with_the_reason() -> None:
    anyhow: Any
    for anyhow, arguments in ((Redlock, {"limit": 2}), (Redlock, {"permits": 2}), (Semaphore, {"limit": 2})):
        with pytest.raises(TypeError, match="AB, BC and AC all win"):
            anyhow([A, B, C], "orders", **arguments)
    with pytest.raises(TypeError, match="Redlock"):
        Lock(cast("Any", [A, B, C]), "orders")
