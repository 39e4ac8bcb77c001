"""Redis's errors say in a note what the caller was doing."""

import asyncio

import pytest
from redis.exceptions import AskError, RedisClusterException, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import AcquireTimeoutError
from aiolocks._core.doing import Doing, noted
from tests.support.cases import one_by_one


@one_by_one("error", [
    RedisConnectionError("gone"), ResponseError("WRONGTYPE"), RedisClusterException("away"), OSError("no memory"),
    AskError("1 host:1"),
])  # fmt: skip
def test_callers_that_get_one_error_have_a_note_each(error: Exception) -> None:
    first = noted(error, "acquiring lock 'a'")
    second = noted(error, "acquiring lock 'b'")
    assert (first, first.__notes__) == (error, ["while acquiring lock 'a'"])
    assert (type(second), str(second)) == (type(error), str(error))
    assert second.__notes__ == ["while acquiring lock 'b'"]


def test_a_note_is_not_repeated() -> None:
    error = RedisConnectionError("gone")
    for _ in range(2):
        with pytest.raises(RedisConnectionError), Doing("renewing lock 'a'"):
            raise error
    assert error.__notes__ == ["while renewing lock 'a'"]


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), KeyError("a"), AcquireTimeoutError("busy", name="a", timeout=1.0, retry_after=1.0)],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_stay_as_they_are(error: BaseException) -> None:
    assert noted(error, "acquiring lock 'a'") is error
    assert not hasattr(error, "__notes__")
