"""A lock on several servers, in virtual time: what it takes for servers, and what it tells of them."""

from datetime import UTC, datetime

import pytest

from aiolocks import QuorumError, Redlock, Statistics
from tests.support.answering import Answering, Asked

KEPT_UNTIL = datetime(2026, 11, 21, 12, 0, 0, 500_000, UTC)
KEPT_MS = round(1000 * KEPT_UNTIL.timestamp())


def servers(*standing: list[int] | Exception) -> list[Answering]:
    """Return servers that say so when they are asked how the name stands, and else yes."""

    def answering(number: int, reply: list[int] | Exception) -> Answering:
        def answer(asked: Asked) -> object:
            if asked.what != "redlock_statistics":
                return 0 if asked.what == "redlock_raise" else 7
            if isinstance(reply, Exception):
                raise reply
            return reply

        server = Answering(answer)
        server.connection_kwargs.update(host=f"redis-{number}", port=6379)
        return server

    return [answering(number, reply) for number, reply in enumerate(standing)]


async def close(several: list[Answering]) -> None:
    for server in several:
        await server.close()


@pytest.mark.parametrize(("standing", "expected"), [
    ([[1, 7, 0], [1, 9, 0], [0, 0, 0]], Statistics("orders", 1, 1, 0, 9, 1)),
    ([[1, 7, 0], [0, 9, 0], [0, 0, 0]], Statistics("orders", 0, 0, 0, 9, 1)),
    ([[1, 7, 0]], Statistics("orders", 1, 1, 0, 7, 1, paused=0.0)),
    ([[1, 7, KEPT_MS], [1, 7, KEPT_MS], [0, 0, 0]], Statistics("orders", 1, 0, 0, 7, 1, KEPT_UNTIL)),
])  # fmt: skip
async def test_a_redlock_is_held_on_most_servers(standing: list[list[int] | Exception], expected: Statistics) -> None:
    several = servers(*standing)
    lock = Redlock([server.client() for server in several], "orders")
    assert await lock.statistics() == expected
    assert await lock.locked() == (expected.permits > 0)
    await close(several)


async def test_an_error_names_the_servers_by_their_addresses() -> None:
    several = servers([1, 7, 0], OSError("no route"), OSError("no route"))
    with pytest.raises(QuorumError) as caught:
        await Redlock([server.client() for server in several], "orders").statistics()
    assert list(caught.value.outcomes) == ["redis-0:6379", "redis-1:6379", "redis-2:6379"]
    assert caught.value.outcomes["redis-0:6379"] == "answered"
    await close(several)
