"""How late this process was: a machine under load must not look like a late lock."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

SLACK = float(os.environ.get("AIOLOCKS_SLACK", "3"))
"""What time bounds are multiplied with on machines that others use too. The nightly run takes them as promised."""

_STEP = 0.005


@dataclass(slots=True)
class Lag:
    """The most seconds that the event loop was late since this was made."""

    worst: float = 0.0


@asynccontextmanager
async def measured_lag() -> AsyncIterator[Lag]:
    """Measure, while the block runs, how late the event loop wakes its tasks."""
    lag = Lag()

    async def measure() -> None:
        while True:
            due = time.monotonic() + _STEP
            try:
                await asyncio.sleep(_STEP)
            finally:  # also when the block, which was late as well, went first
                lag.worst = max(lag.worst, time.monotonic() - due)

    task = asyncio.create_task(measure())
    try:
        yield lag
    finally:
        task.cancel()
        await asyncio.wait((task,))
