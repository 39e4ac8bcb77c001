"""The short answer: one that asks for the first time joins others of its session, who are told all there is to tell."""

import pytest
from redis.exceptions import ResponseError

from tests.scripts.calls import Granted, QueuedBeside, Scripts, on_server
from tests.scripts.states import configured, fence_of, line, now_us

pytestmark = pytest.mark.parametrize("exclusive", ["lock", "semaphore"], indirect=True)


@pytest.mark.parametrize("newest_is_known", [True, False])
def test_after_a_step_back_it_names_a_place_behind_all_others(awaited_here: Scripts, newest_is_known: bool) -> None:
    last = now_us(awaited_here) + 3_600_000_000
    awaited_here.redis.zadd(awaited_here.key("waiters"), {awaited_here.entry("dan"): last})
    if newest_is_known:
        awaited_here.redis.set(awaited_here.key("highest"), last, ex=60)
    else:
        awaited_here.redis.delete(awaited_here.key("highest"))
    assert awaited_here.grant("cat", brief=True) == QueuedBeside(last + 1)


def test_a_request_that_comes_while_its_token_holds_the_lock_is_answered_with_that_grant(awaited_here: Scripts) -> None:
    """P6: it was long on its way, and a later one has been granted meanwhile."""
    answer = awaited_here.grant("ann", brief=True)
    assert isinstance(answer, Granted)
    assert answer.fence == fence_of(awaited_here, "ann")
    assert line(awaited_here) == ["ben"]


@on_server
def test_at_the_memory_limit_nothing_is_written_and_it_is_an_error(awaited_here: Scripts) -> None:
    with configured(awaited_here, maxmemory=1), pytest.raises(ResponseError, match="used memory"):
        awaited_here.grant("cat", brief=True)
    assert line(awaited_here) == ["ben"]
