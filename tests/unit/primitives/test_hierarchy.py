"""Paths in virtual time: what is asked of the server at each level, and how all come to one fencing token."""

from contextlib import aclosing
from typing import Any

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import HierarchicalLock
from aiolocks._core.modes import EXCLUSIVE, FRONT, INTENT_EXCLUSIVE, INTENT_SHARED, SHARED
from tests.support.answering import SILENCE, Answering, Asked


class Server(Answering):
    """One that grants whatever is asked for, each time with a larger fencing token."""

    def __init__(self, *fences: object) -> None:
        super().__init__(self._answer)
        self._fences = list(fences)
        self._number = 0

    def _answer(self, asked: Asked) -> object:
        if asked.what == "modes_fence":
            return self._fences.pop(0) if self._fences else 50
        if asked.what != "modes_grant":
            return 1
        self._number += 1
        return self._number

    def at(self, path: str, **options: Any) -> HierarchicalLock:
        return HierarchicalLock(self.client(), path, **options)

    def wishes(self) -> list[tuple[bytes, int, int]]:
        asked = self.runs("modes_grant")
        return [(each.keys[0], int(each.arguments[2]), int(each.arguments[3])) for each in asked]


ROOT, TABLE, ROW, SIBLING = (
    b"aiolocks:hierarchy:{shop}" + rest for rest in (b"", b"/orders", b"/orders/42", b"/orders/43")
)


@pytest.mark.parametrize(("word", "above", "mode"), [
    ("read", INTENT_SHARED, SHARED), ("write", INTENT_EXCLUSIVE, EXCLUSIVE),
])  # fmt: skip
async def test_levels_above_are_held_by_intention_behind_all_others(word: str, above: int, mode: int) -> None:
    async with aclosing(Server()) as server:
        async with getattr(server.at("shop/orders/42"), word):
            pass
        assert server.wishes() == [(ROOT, above, ~0), (TABLE, above, ~0), (ROW, mode, ~0)]


async def test_a_second_path_passes_the_queue_at_the_levels_that_are_held_already_and_at_no_other() -> None:
    async with aclosing(Server()) as server:
        async with server.at("shop/orders/42").write, server.at("shop/orders/43").write:
            pass
        assert server.wishes()[3:] == [
            (ROOT, INTENT_EXCLUSIVE, ~FRONT), (TABLE, INTENT_EXCLUSIVE, ~FRONT), (SIBLING, EXCLUSIVE, ~0),
        ]  # fmt: skip


@pytest.mark.parametrize("path", ["shop/orders", "shop/orders/42"])
async def test_all_levels_have_one_fencing_token_that_is_asked_for_in_one_step(path: str) -> None:
    async with aclosing(Server()) as server:
        async with server.at(path).write as lease:
            assert (lease.fencing_token, set(lease.fencing_tokens.values())) == (50, {50})
        (asked,) = server.runs("modes_fence")
        levels = (ROOT, TABLE, ROW)[: path.count("/") + 1]
        assert asked.keys == [key for level in levels for key in (level, level + b":meta")]
        assert asked.arguments == [each.arguments[0] for each in server.runs("modes_grant")]


async def test_a_path_of_one_level_has_its_fencing_token_from_its_grant_without_a_second_question() -> None:
    async with aclosing(Server()) as server:
        async with server.at("shop").write as lease:
            assert lease.fencing_tokens == {"shop": 1}
        assert not server.runs("modes_fence")


async def test_a_fencing_token_whose_answer_was_lost_is_asked_for_again() -> None:
    async with aclosing(Server(SILENCE, 60)) as server:
        async with server.at("shop/orders").write as lease:
            assert lease.fencing_token == 60
            assert len(server.runs("modes_grant")) == 2, "what is held is not asked for again"


async def test_a_level_lost_before_all_have_one_fencing_token_makes_all_begin_again() -> None:
    async with aclosing(Server(0, 60)) as server:
        async with server.at("shop/orders").write as lease:
            assert lease.fencing_token == 60
        assert len({asked.arguments[0] for asked in server.runs("modes_grant")}) == 4


async def test_a_fencing_token_is_asked_for_within_half_the_ttl() -> None:
    """Then all are renewed first, as there is too little left to begin with."""
    async with aclosing(Server(*[SILENCE] * 100)) as server:
        with pytest.raises(RedisTimeoutError):
            async with server.at("shop/orders", ttl=16).write:
                pytest.fail("it has no fencing token")
        renewed_at = server.times("modes_renew")[0]
        before = [at for at in server.times("modes_fence") if at < renewed_at]
        assert before == pytest.approx([0, 1, 3, 7], abs=0.5)


@pytest.mark.parametrize(("word", "answers", "locked"), [
    ("read", ([1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]), False),
    ("read", ([0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]), True),
    ("read", ([1, 0, 0, 0, 0, 0], [1, 1, 0, 1, 1, 1]), True),
    ("write", ([0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]), False),
    ("write", ([1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]), True),
    ("write", ([1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]), True),
])  # fmt: skip
async def test_a_path_is_locked_where_a_holder_is_in_the_way_at_its_end_or_above(
    word: str, answers: tuple[list[int], list[int]], locked: bool
) -> None:
    replies = {ROOT: answers[0], TABLE: answers[1]}
    server = Answering(lambda asked: [*[0] * 8, replies[asked.keys[0]]])
    assert await getattr(HierarchicalLock(server.client(), "shop/orders"), word).locked() == locked
    await server.close()
