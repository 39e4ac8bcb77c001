"""Asynchronous tests run in virtual time here, as if `@jumping` stood before each; but not those marked `asyncio`."""

import inspect

import pytest

from tests.support.jumping import jumping


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    if inspect.iscoroutinefunction(pyfuncitem.obj) and pyfuncitem.get_closest_marker("asyncio") is None:
        pyfuncitem.obj = jumping(pyfuncitem.obj)
