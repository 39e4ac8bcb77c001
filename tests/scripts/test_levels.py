"""A path's levels: one fencing token for all of them, and what spares a task the queue."""

import pytest
from redis import Redis

from aiolocks._core.modes import INTENT_EXCLUSIVE, SHARED
from aiolocks._redis.scripts import load
from tests.scripts.calls import Scripts, token
from tests.scripts.states import contents, fence_of, lapse, last_fence, mark, set_last_fence

LEVELS = ["{shop}", "{shop}/orders", "{shop}/orders/42"]


@pytest.fixture
def levels(backend: Redis) -> list[Scripts]:
    """The levels of a path, all held by ann."""
    found = []
    for level in LEVELS:
        scripts = Scripts(backend, "rwlock")
        scripts.keys.base = f"aiolocks:hierarchy:{level}".encode()
        scripts.granted("ann", permits=INTENT_EXCLUSIVE)
        found.append(scripts)
    return found


def common_fence(levels: list[Scripts], who: str = "ann") -> int:
    script = load("modes/fence")
    keys = [key for scripts in levels for key in (scripts.keys.base, scripts.key("meta"))]
    tokens = [token(who)] * len(levels)
    fence: int = levels[0].redis.execute_command("EVAL", script.source, len(keys), *keys, *tokens)
    return fence


@pytest.mark.parametrize("ahead", range(3))
def test_all_levels_get_one_fencing_token_larger_than_any_before(levels: list[Scripts], ahead: int) -> None:
    """Also of the level whose counter is ahead, as its rows or tables are in use all the time."""
    set_last_fence(levels[ahead], 4 * 10**15)
    fence = common_fence(levels)
    assert fence == 4 * 10**15 + 1
    assert {fence_of(scripts, "ann") for scripts in levels} == {fence}
    assert {last_fence(scripts) for scripts in levels} == {b"%d" % fence}


def test_the_common_token_stays_and_the_next_grant_at_any_level_has_a_larger_one(levels: list[Scripts]) -> None:
    set_last_fence(levels[2], 4 * 10**15)
    fence = common_fence(levels)
    assert all(scripts.granted("ben", permits=INTENT_EXCLUSIVE).fence > fence for scripts in levels)
    assert common_fence(levels) == fence
    assert {scripts.granted("ann", permits=INTENT_EXCLUSIVE).fence for scripts in levels} == {fence}


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.parametrize("gone", range(3))
def test_there_is_none_when_a_level_is_not_held_any_more(levels: list[Scripts], gone: int, noticed: bool) -> None:
    lapse(levels[gone], "ann")
    if noticed:  # a script of that level has removed its terms
        levels[gone].grant("zoe", permits=SHARED, wait=False)
    before = [last_fence(scripts) for scripts in levels]
    assert common_fence(levels) == 0
    assert [last_fence(scripts) for scripts in levels] == before


def test_a_path_of_which_one_level_is_revoked_gets_no_fencing_token(levels: list[Scripts]) -> None:
    """W16."""
    mark(levels[1], "ann")
    before = contents(levels[0])
    assert common_fence(levels) == 0
    assert contents(levels[0]) == before
