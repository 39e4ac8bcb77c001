"""Several names held as one, in virtual time: what is told of them together."""

import pytest

from aiolocks import MultiLock, Statistics
from tests.support.answering import Answering, Asked


def standing(**rows: list[int]) -> Answering:
    """Return a server on which each name stands so: leases held, waiters, last fencing token."""

    def answer(asked: Asked) -> object:
        name = asked.keys[0].decode().partition("{")[2].partition("}")[0]
        holders, waiting, fence = rows[name]
        return [holders, holders, waiting, fence, 1, 0, 0, 0]

    return Answering(answer)


@pytest.mark.parametrize(("rows", "expected"), [
    ({"a": [0, 0, 5], "b": [1, 2, 9]}, Statistics("a, b", 1, 1, 2, 9, 1)),
    ({"a": [1, 3, 9], "b": [0, 0, 5]}, Statistics("a, b", 1, 1, 3, 9, 1)),
    ({"a": [1, 1, 7], "b": [1, 4, 8]}, Statistics("a, b", 1, 1, 5, 8, 1)),
    ({"a": [0, 0, 0], "b": [0, 0, 3]}, Statistics("a, b", 0, 0, 0, 3, 1)),
])  # fmt: skip
async def test_several_names_are_held_when_one_of_them_is(rows: dict[str, list[int]], expected: Statistics) -> None:
    server = standing(**rows)
    several = MultiLock(server.client(), ["b", "a"])
    assert await several.statistics() == expected
    assert await several.locked() == (expected.holders > 0)
    await server.close()


async def test_one_name_alone_is_held_and_guards_as_several_do() -> None:
    replies: dict[str, object] = {"lock_grant": 7, "lock_release": 1, "lock_guard": b"*1\r\n+OK\r\n"}
    server = Answering(lambda asked: replies[asked.what])
    async with MultiLock(server.client(), ["a"]) as lease:
        assert lease.fencing_tokens == {"a": 7}
        assert await lease.guard(("SET", "k", "v")) == [b"OK"]
    await server.close()
