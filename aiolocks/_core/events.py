"""Who is told what happens to locks, and nothing else.

Whoever has something to tell looks at `listeners` first, or at what that has led to, so that nothing is paid when
nobody listens. The lines that the logger `aiolocks` has at DEBUG level are told from here as well.
"""

import asyncio
import inspect
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast, final

log = logging.getLogger("aiolocks")


Kind = Literal[
    "waiting", "acquired", "timed_out", "cancelled", "failed", "renewed", "renewal_failed", "lost", "revoked",
    "released", "handed_over", "stalled", "polling", "limit_differs",
]  # fmt: skip


class Event(NamedTuple):
    """Something that has happened to a lock, a semaphore or one of their kin, in this process.

    ================== ================================================= =============================================
    `kind`             what has happened                                 `seconds`
    ================== ================================================= =============================================
    ``waiting``        others are in the way, and the caller waits       since the caller asked
    ``acquired``       the caller has its lease                          that it waited
    ``timed_out``      it had waited for as long as it would             that it waited
    ``cancelled``      it was cancelled                                  that it waited
    ``failed``         an error has ended its wait                       that it waited
    ``renewed``        the server has confirmed a renewal                until it had answered
    ``renewal_failed`` it has not; this is tried again                   left of the lease
    ``stalled``        the loop was silent for so long that the thread   that it may be silent: `max_stall`
                       watchdog does not renew the lease until it is not
    ``released``       the holder has let go                             that it held
    ``lost``           the lease ended before that                       that it held, until this was known
    ``revoked``        the same, as it was taken back                    that it held, until this was known
    ``handed_over``    with the answer to a release, the server said     0
                       that a waiter in this process has the name now
    ``limit_differs``  a semaphore's limit is not what it was before     0
    ``polling``        waiters cannot be told of their turn; they ask    until being told is tried again
    ================== ================================================= =============================================

    Each acquisition ends with one of ``acquired``, ``timed_out``, ``cancelled`` and ``failed``, whether it had to wait
    or not; and each lease with one of ``released``, ``lost`` and ``revoked``. A `try_acquire` that is answered None is
    no event. Neither are inner holds of an `RLock`, which are one lease.

    Attributes:
        kind: What has happened; see above. There may be more kinds in the future.
        name: To what, as the caller named it; of a `MultiLock`, all names together, but for ``handed_over``. Empty for
            ``polling``, which concerns a client.
        primitive: What that is: ``lock``, ``rlock``, ``rwlock``, ``semaphore``, ``multilock``, ``redlock``,
            ``hierarchy``. Empty for ``polling``.
        seconds: See above.
        fencing_token: Of the lease; 0 where there is none yet. In ``handed_over``, of the waiter's.
        acquisition: A number that all events of one acquisition and its lease have in common, and no others in this
            process. 0 for ``handed_over``, ``limit_differs`` and ``polling``.
    """

    kind: Kind
    name: str
    primitive: str
    seconds: float = 0.0
    fencing_token: int = 0
    acquisition: int = 0  # a tuple, as a dataclass that is frozen takes three times as long to make


new: Callable[[type[Event], tuple[Kind, str, str, float, int, int]], Event] = cast("Any", tuple).__new__
"""Makes an event of all its fields in half the time that `Event` takes."""


@final
class _Listener:
    """A callback, as it was registered once."""

    __slots__ = ("_seen", "callback")

    def __init__(self, callback: Callable[[Event], object]) -> None:
        self.callback = callback
        self._seen: set[type[BaseException]] = set()

    def failed(self, event: Event, error: BaseException) -> None:
        """Log an error of the callback; each type of error once, as there may be thousands of events a second."""
        if type(error) not in self._seen:
            self._seen.add(type(error))
            log.error(
                "a callback of aiolocks.events failed at %r, and is called again; no further %s of it is logged",
                event.kind, type(error).__name__, exc_info=error,
            )  # fmt: skip


listeners: tuple[_Listener, ...] = ()
"""Who is told. Never changed in place: whoever goes through it need not mind who comes or goes meanwhile."""

_changing = threading.Lock()

number: Callable[[], int] = itertools.count(1).__next__
"""Returns a number for an acquisition, which no other has."""


def on_event(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Have *callback* called with each event of this process, from now on; return what ends that.

    ::

        def note(event: Event) -> None:
            if event.kind in ("lost", "revoked"):
                alert(f"{event.primitive} {event.name} was lost after {event.seconds:.1f} s")


        unsubscribe = on_event(note)

    It is called in the event loop in which the lease or waiter lives, where asyncio's own callbacks are; for
    ``acquired``, ``timed_out``, ``cancelled`` and ``failed`` in the task that has asked. So it must be quick: what it
    takes the caller waits for, with a lease that is running. Where loops run in several threads, so does it.

    What it raises reaches no caller: it is logged by the logger ``aiolocks``, each type of error once. What an
    acquisition that began before has told counts from then on only: its first event may be that it ended.

    Args:
        callback: A plain function. What it returns is ignored.

    Returns:
        A function that ends it; further calls do nothing. Registered twice, a callback is called twice, and each is
        ended by itself.

    Raises:
        TypeError: It cannot be called, or is a coroutine function.
    """
    if not callable(callback):
        raise TypeError(f"callback must be a function that takes an event, not {callback!r}")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise TypeError(
            "callback must be a plain function, as no event waits for it; start a task in it, or put the event in a "
            "queue"
        )
    listener = _Listener(callback)

    def unsubscribe() -> None:
        global listeners
        with _changing:
            listeners = tuple(other for other in listeners if other is not listener)

    global listeners
    with _changing:
        listeners = (*listeners, listener)
    return unsubscribe


def emit(event: Event) -> None:
    """Tell all who listen, and the log at DEBUG level. Nothing that a callback raises comes back."""
    if event[5] and log.isEnabledFor(logging.DEBUG):
        log.debug(
            "%s %r: %s (%.3f s, fencing token %d, acquisition %d)",
            event.primitive, event.name, event.kind, event.seconds, event.fencing_token, event.acquisition,
        )  # fmt: skip
    for listener in listeners:
        try:
            listener.callback(event)
        except (Exception, asyncio.CancelledError) as error:
            listener.failed(event, error)
