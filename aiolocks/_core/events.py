"""Events: callbacks for what happens to locks, and the lines that the logger `aiolocks` writes at DEBUG level.

Callers check `listeners` before they build an event, so events cost nothing without a listener.
"""

import asyncio
import inspect
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

log = logging.getLogger("aiolocks")

Kind = Literal[
    "waiting", "acquired", "timed_out", "cancelled", "failed", "renewed", "renewal_failed", "endangered", "lost",
    "revoked", "released", "handed_over", "stalled", "polling", "limit_differs", "paused",
]  # fmt: skip


class Event(NamedTuple):
    """Something that has happened to a lock, a semaphore or another primitive, in this process.

    ================== ================================================= =============================================
    `kind`             what has happened                                 `seconds`
    ================== ================================================= =============================================
    ``waiting``        the name is busy, and the caller waits            since the caller asked
    ``acquired``       the caller has its lease                          that it waited
    ``timed_out``      its timeout has passed, or too many wait          that it waited
    ``cancelled``      it was cancelled                                  that it waited
    ``failed``         an error has ended its wait                       that it waited
    ``renewed``        the server has confirmed a renewal                until the reply
    ``renewal_failed`` a renewal has failed, and will be retried         left of the lease
    ``endangered``     it was not renewed for half of its TTL, as Redis  left of the lease
                       could not be reached or the loop was blocked
    ``stalled``        the loop gave no sign of life for so long that    that it may be silent: `max_stall`
                       the thread watchdog stops renewing the lease
    ``released``       the holder has released it                        that it held
    ``lost``           the lease ended before its release                that it held, until this was known
    ``revoked``        the same, because it was revoked                  that it held, until this was known
    ``handed_over``    the reply to a release said that a waiter in      0
                       this process has the name now
    ``limit_differs``  a semaphore's limit has changed                   0
    ``paused``         a semaphore was paused by this process            that the pause lasts
    ``polling``        wake-ups do not arrive, so waiters poll           until the next try to subscribe
    ================== ================================================= =============================================

    ``endangered`` is reported at most once between two confirmed renewals: at the first try after half of the TTL. It
    is never reported of a lease that is not renewed because of ``renew=False`` or `max_hold`.

    Each acquisition ends with one of ``acquired``, ``timed_out``, ``cancelled`` and ``failed``, whether it had to wait
    or not. Each lease ends with one of ``released``, ``lost`` and ``revoked``. A `try_acquire` that returns None is no
    event. Neither are inner holds of an `RLock`, which share one lease.

    Attributes:
        kind: What has happened; see above. There may be more kinds in the future.
        name: The name, as the caller gave it. All names of a `MultiLock` together; ``handed_over`` has one of them.
            Empty for ``polling``, which concerns a client.
        primitive: The kind of primitive: ``lock``, ``rlock``, ``rwlock``, ``semaphore``, ``multilock``, ``redlock``,
            ``hierarchy``. Empty for ``polling``.
        seconds: See above.
        fencing_token: The fencing token of the lease; 0 if there is none yet. In ``handed_over``, that of the waiter.
        acquisition: A number that is common to all events of one acquisition and its lease, and unique in this process.
            0 for ``handed_over``, ``limit_differs``, ``paused`` and ``polling``.
        note: What the lease is for: the option `note`, or what `lease.note` was called with last; None without one. It
            is as its author wrote it. Do not make it a label of a metric, as there are many.
    """

    kind: Kind
    name: str
    primitive: str
    seconds: float = 0.0
    fencing_token: int = 0
    acquisition: int = 0  # the class is a tuple, as a frozen dataclass takes three times as long to make
    note: str | None = None


listeners: tuple[Callable[[Event], None], ...] = ()
"""One for each registration of a callback. Replaced, never mutated, so it is safe to iterate over."""

_changing = threading.Lock()

number: Callable[[], int] = itertools.count(1).__next__
"""Returns a unique number for an acquisition."""


def on_event(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Call *callback* with each event of this process from now on; return a function that stops this.

    ::

        def note(event: Event) -> None:
            if event.kind in ("lost", "revoked"):
                alert(f"{event.primitive} {event.name} was lost after {event.seconds:.1f} s")


        unsubscribe = on_event(note)

    It runs in the event loop of the lease or waiter, like asyncio's own callbacks. For ``acquired``, ``timed_out``,
    ``cancelled`` and ``failed`` it runs in the task that has asked. It must be quick, because the caller waits for it
    while the lease is running. If loops run in several threads, it runs in each of them.

    Its exceptions reach no caller: the logger ``aiolocks`` logs each type of error once. Acquisitions that were already
    under way report later events only; the first event may be the end.

    Args:
        callback: A plain function. Its result is ignored. If it is registered twice, it is called twice.

    Returns:
        A function that stops the calls of this registration. Calling it again does nothing.

    Raises:
        TypeError: It is not callable, or is a coroutine function.
    """
    if not callable(callback):
        raise TypeError(f"callback must be a function that takes an event, not {callback!r}")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise TypeError(
            "callback must be a plain function, as no event waits for it; start a task in it, or put the event in a "
            "queue"
        )
    seen: set[type[BaseException]] = set()

    def listener(event: Event) -> None:
        try:
            callback(event)
        except (Exception, asyncio.CancelledError) as error:
            if type(error) not in seen:  # log each type once, as there may be thousands of events a second
                seen.add(type(error))
                log.error(
                    "a callback of aiolocks.events failed at %r, and is called again; no further %s of it is logged",
                    event.kind, type(error).__name__, exc_info=error,
                )  # fmt: skip

    def unsubscribe() -> None:
        global listeners
        with _changing:
            listeners = tuple(other for other in listeners if other is not listener)

    global listeners
    with _changing:
        listeners = (*listeners, listener)
    return unsubscribe


def emit(event: Event) -> None:
    """Call all listeners, and log at DEBUG level. No exception of a callback leaves this function."""
    if event[5] and log.isEnabledFor(logging.DEBUG):
        log.debug(
            "%s %r: %s (%.3f s, fencing token %d, acquisition %d)",
            event.primitive, event.name, event.kind, event.seconds, event.fencing_token, event.acquisition,
        )  # fmt: skip
    for listener in listeners:
        listener(event)
