"""A call that must be awaited is Python's own coroutine in all but this: no other use of it passes for its answer."""

import asyncio
import inspect
import sys
from typing import Any

import pytest

from aiolocks._engine.must_await import must_await

# asyncio's is deprecated since Python 3.14; inspect's takes a marker since 3.12.
is_coroutine_function = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction

RIGHT = "answer() must be awaited: use `if await answer():`"


@must_await(RIGHT)
async def answer(given: int = 0, *, doubled: bool = False) -> int:
    """Return what is given, after a turn of the loop."""
    try:
        await asyncio.sleep(0)
    except KeyError as error:
        raise ValueError("thrown in") from error
    return given * 2 if doubled else given


def test_an_awaited_call_gives_the_answer_of_its_function() -> None:
    async def asked() -> list[int]:
        return [await answer(7, doubled=True), await asyncio.create_task(answer(7)), await asyncio.shield(answer())]

    assert asyncio.run(asked()) == [14, 7, 0]


def test_a_call_shows_the_name_signature_code_and_docstring_of_its_function() -> None:
    function: Any = answer
    assert (function.__name__, function.__doc__) == ("answer", "Return what is given, after a turn of the loop.")
    assert str(inspect.signature(function)) == "(given: int = 0, *, doubled: bool = False) -> int"
    assert is_coroutine_function(function)
    call: Any = answer()
    assert (call.__name__, call.__qualname__) == ("answer", "answer")
    assert call.cr_code.co_name == "answer"
    call.close()


def test_a_task_of_a_call_is_shown_before_and_while_it_runs() -> None:
    async def shown() -> list[str]:
        task = asyncio.create_task(answer())
        before = repr(task)
        await asyncio.sleep(0)
        while_it_runs = repr(task)
        await task
        return [before, while_it_runs]

    assert all("coro=<answer() " in text for text in asyncio.run(shown()))


def test_a_call_is_driven_and_closed_as_a_coroutine_is() -> None:
    call: Any = answer(7)
    assert call.send(None) is None
    with pytest.raises(ValueError, match="thrown in"):
        call.throw(KeyError())
    call = answer(7)
    call.send(None)
    with pytest.raises(StopIteration) as stopped:
        call.send(None)
    assert stopped.value.value == 7
    call = answer()
    assert inspect.getcoroutinestate(call) == inspect.CORO_CREATED
    call.close()
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED
    with pytest.raises(RuntimeError, match="already awaited"):
        call.send(None)


def test_every_other_use_raises_the_text_with_the_right_call() -> None:
    async def as_a_block(call: Any) -> None:
        async with call:
            pytest.fail("entered")

    def as_a_plain_block(call: Any) -> None:
        with call:
            pytest.fail("entered")

    for use in (bool, iter, as_a_plain_block, lambda call: asyncio.run(as_a_block(call))):
        call: Any = answer()
        with pytest.raises(TypeError) as caught:
            use(call)
        assert str(caught.value) == RIGHT
        call.close()
