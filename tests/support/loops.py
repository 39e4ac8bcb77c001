"""Other event loops for every asynchronous test, by `pytest -p tests.support.loops`.

AIOLOCKS_EVENT_LOOP names one: uvloop or eager. They call back in another order than asyncio's own.
"""

import asyncio
import os
from collections.abc import Callable, Mapping

import pytest

Factory = Callable[[], asyncio.AbstractEventLoop]


def eager() -> asyncio.AbstractEventLoop:
    """Return a loop whose tasks begin at once: Python 3.12 and newer."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # new in 3.12
    return loop


def uvloop() -> asyncio.AbstractEventLoop:
    import uvloop as module

    return module.new_event_loop()


_FACTORIES: dict[str, Factory] = {"eager": eager, "uvloop": uvloop}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Factory]:
    name = os.environ.get("AIOLOCKS_EVENT_LOOP", "")
    if name not in _FACTORIES:
        raise pytest.UsageError(f"AIOLOCKS_EVENT_LOOP must be one of {', '.join(_FACTORIES)}, not {name!r}")
    return {name: _FACTORIES[name]}
