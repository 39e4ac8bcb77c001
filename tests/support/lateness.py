"""Checks of time bounds. A test that fails by one is run once more; any other failure is final.

A shared machine may stand still for a second at any moment. So the helpers here raise an error of their own, for which
pytest-rerunfailures runs a test once more (`addopts` in pyproject.toml), three tests in a run at most. A safety
assertion raises AssertionError. The text of the first failure stays in the log and in JUnit's file.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from aiolocks import Holder, LeaseLostError
from aiolocks.testing import JumpingLoop

SLACK = float(os.environ.get("AIOLOCKS_SLACK", "3"))
"""Factor for time bounds on a shared machine. The nightly run takes the bounds as promised."""

_STEP = 0.005


class TooLateError(AssertionError):
    """A time bound was passed. Its name stands in `addopts`."""


def assert_within(took: float, bound: float, what: str = "") -> None:
    """Check how soon the library acts. A bound that protects another holder is a safety assertion: use `assert`."""
    if took > bound:
        raise TooLateError(f"{took:.3f} s, bound {bound:.3f} s{what and f': {what}'}")


def answered(holders: tuple[Holder, ...] | None) -> tuple[Holder, ...]:
    """Return the *holders* of an AcquireTimeoutError. Redis is asked for them 50 ms before the timeout."""
    if holders is None:
        raise TooLateError("the holders were not known in time")
    return holders


@asynccontextmanager
async def bounded(seconds: float) -> AsyncIterator[None]:
    """Bound a wait for what must come."""
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            yield
    except TimeoutError:
        if timer.expired():
            raise TooLateError(f"did not come within {seconds:g} s") from None
        raise


@dataclass(slots=True)
class Lag:
    """Maximum seconds by which the event loop was late since this object was made."""

    worst: float = 0.0


@asynccontextmanager
async def measured_lag() -> AsyncIterator[Lag]:
    """Measure, while the block runs, how late the event loop wakes its tasks. In virtual time it never does."""
    lag = Lag()
    if isinstance(asyncio.get_running_loop(), JumpingLoop):
        yield lag
        return

    async def measure() -> None:
        while True:
            due = time.monotonic() + _STEP
            try:
                await asyncio.sleep(_STEP)
            finally:  # also if the block, which was late as well, ran first
                lag.worst = max(lag.worst, time.monotonic() - due)

    task = asyncio.create_task(measure())
    try:
        yield lag
    finally:
        task.cancel()
        await asyncio.wait((task,))


@asynccontextmanager
async def kept(ttl: float) -> AsyncIterator[None]:
    """Check that the block loses no lease of *ttl*. It may, if the loop is late by a third of that."""
    async with measured_lag() as lag:
        try:
            yield
        except LeaseLostError as error:
            if lag.worst > ttl / 3:
                raise TooLateError(f"{error}; the loop was late by {lag.worst:.3f} s") from error
            raise


@asynccontextmanager
async def in_time(bound: float, what: str = "") -> AsyncIterator[None]:
    """Check that the block takes no more than *bound* seconds; how late the event loop was meanwhile is not counted.

    It does not end the block. The clock is the loop's, so that virtual time is judged too.
    """
    loop = asyncio.get_running_loop()
    async with measured_lag() as lag:
        began = loop.time()
        yield
        took = loop.time() - began
    assert_within(took, bound + lag.worst, what)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the text of a failure of lateness with the test: JUnit's file has only the last attempt's outcome."""
    if call.excinfo is not None and call.excinfo.errisinstance(TooLateError):
        item.user_properties.append(("too late", str(call.excinfo.value)))
    return (yield)
