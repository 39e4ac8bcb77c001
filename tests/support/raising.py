"""Errors of ours that other processes raise, and what of an error must be the same wherever it goes.

A module of its own, since a process pool imports by name what it runs.
"""

import asyncio
from collections.abc import Mapping

import aiolocks


class OrderBusyError(aiolocks.AcquireTimeoutError):
    """A user's own error, made in the user's own way."""

    def __init__(self, order: int, *, customer: str) -> None:
        super().__init__(f"order {order} is busy", name=f"orders:{order}", timeout=2.5, retry_after=7.25)
        self.order = order
        self.customer = customer


def every_error() -> list[aiolocks.LockError]:
    """Return one of each kind, the base class and a user's own included."""
    return [
        aiolocks.LockError("just an error", name="orders"),
        aiolocks.OnceFailedError("failed elsewhere", name="rates"),
        aiolocks.OutcomeMismatchError("another request", name="payment"),
        aiolocks.QueueFullError("full", name="orders", timeout=0.0, retry_after=None, waiting=20),
        aiolocks.AcquireTimeoutError("busy", name="orders", timeout=5.0, retry_after=0.5),
        aiolocks.LeaseLostError("lost", name="orders", fencing_token=42, reason="revoked"),
        aiolocks.LimitMismatchError("too many", name="scraper", permits=5, limit=3),
        aiolocks.QuorumError("too few", name="orders", outcomes={"a:6379": "answered", "b:6379": "no answer in time"}),
        aiolocks.VersionConflictError("changed", name="stock", expected="a1", actual="b2"),
        OrderBusyError(7, customer="Ada"),
    ]


def told(error: BaseException) -> Mapping[str, object]:
    return {"type": type(error), "text": str(error), "repr": repr(error), "args": error.args, **vars(error)}


def fail(number: int) -> None:
    """Raise one of them, with a note on it."""
    error = every_error()[number]
    error.add_note("seen in another process")
    raise error


def take(url: str, name: str) -> None:
    async def ask() -> None:
        async with aiolocks.LockManager.from_url(url) as locks:
            async with locks.lock(name).hold(timeout=0):
                pass

    asyncio.run(ask())
