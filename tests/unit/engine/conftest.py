"""Asynchronous tests of this folder run in virtual time, unless they are marked for a real loop."""

import inspect

import pytest

from tests.support.jumping import jumping


def pytest_itemcollected(item: pytest.Item) -> None:
    real = item.get_closest_marker("asyncio") is not None
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj) and not real:
        item.obj = jumping(item.obj)
