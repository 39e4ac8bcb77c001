"""Tests of the engine in virtual time: the clock of the loop is that of the leases, and it jumps."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import pytest

from aiolocks._engine.context import Context
from aiolocks.testing import JumpingLoop
from tests.support.virtual import clock

P = ParamSpec("P")


def jumping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run *test* on a loop whose clock jumps, and is every session's; nothing may be left or go unnoticed."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        troubles: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
            await test(*args, **kwargs)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=JumpingLoop) as runner:
            patch.setattr(Context, "clock", staticmethod(clock))
            runner.run(main())
        assert not troubles, troubles

    return run


def the_loop() -> JumpingLoop:
    """Return the running loop, for what there is no public way to ask it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    return loop


def timers() -> int:
    return sum(not timer.cancelled() for timer in the_loop()._scheduled)  # type: ignore[attr-defined]
