"""`Once`: one caller in the fleet runs a function, and all others get its outcome.

A `Once` is a description, as a `Lock` is. What happens to its callers is in `_once_flight`, and what is written in
`_once_outcome`.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import ClassVar, Literal, TypedDict, TypeVar, cast, final

from ._core.hints import NameHints, explains_misuse
from ._core.options import UNSET, Duration, Replicas, Unset, check_within_reason, options_of
from ._core.values import Holder, Waiter
from ._engine.closing import closed_error
from ._once_flight import flight_of
from ._once_outcome import Caller, Dumps, Loads, Outcome, Store
from ._primitives.base import Acquirable
from ._redis.clients import Client

T = TypeVar("T")

_MAX_FINGERPRINT = 1024


class OnceOptions(TypedDict, total=False):
    """The options of a `Once`, for type checkers: ``**options: Unpack[OnceOptions]``. See `Once`."""

    errors: Literal["share", "retry"]
    dumps: Dumps
    loads: Loads
    ttl: Duration
    acquire_timeout: Duration | None
    max_hold: Duration | None
    watchdog: Literal["task", "thread"]
    max_stall: Duration
    replicas: Replicas
    min_uptime: Duration
    track: bool
    max_waiting: int | None
    note: str | None
    prefix: str


@final
class _Runner(Acquirable):
    """The lock under which a function runs."""

    _kind: ClassVar[str] = "once"


def _dumps(value: object) -> bytes:
    return json.dumps(value).encode()


@final
class Once(NameHints):
    """One caller in the fleet runs a function; all others wait for its outcome, and get that.

    ::

        rates = Once(redis, "rates:eur", keep=3600)
        today = await rates.run(fetch_rates)

    A kept outcome is returned at once. Without one, the first caller runs the function under a lease that is renewed
    meanwhile. Callers of one process share one waiting acquisition and one result. If the runner dies, the next caller
    runs. The outcome is written only if the runner still holds its lease.

    A function runs *at least* once, not exactly once: a runner that dies, or loses its lease, after the work and before
    the outcome is written leaves no trace of the work. Give the name to the resource as well, such as an idempotency
    key of a payment service.

    A name stands for one result. If callers pass different functions under one name, one of them runs.

    Every duration is a number of seconds or a `timedelta`.

    Args:
        client: Any `redis.asyncio.Redis`, as you configured it. It is neither modified nor closed.
        name: What the outcome is of: 1 to 1,024 bytes of UTF-8, any text.
        keep: Seconds for which an outcome is kept. With 0, only callers that were waiting get it.
        errors: "share" gives a failure to the callers that were waiting; later callers run again. In the same process
            they get a copy of the exception, elsewhere OnceFailedError with its type and text. With "retry" only its
            caller gets the exception, and the next waiter runs.
        dumps: Function that turns a value into bytes. Left out: JSON.
        loads: Function that turns these bytes into a value, for callers of other processes and later ones. Callers of
            the process that ran share the function's own result.
        ttl: Seconds a runner's lease lasts unless renewed: how long others wait when its process dies. At least 0.1.
        acquire_timeout: Seconds to wait for the outcome of another caller. None, the default, waits for ever. 0 runs,
            or raises at once.
        max_hold: Seconds after which a runner's lease is no longer renewed, so that a hung function is cancelled.
        max_waiting: Maximum number of processes that wait for a runner in another process. If as many wait already,
            the callers of this process get QueueFullError.
        watchdog, max_stall, replicas, min_uptime, track, note, prefix: As for a `Lock`.

    Raises:
        TypeError: A wrong type, a synchronous client, or an option of `Lock` that makes no sense here: `on_lost`,
            `renew`, `wait_release` and `min_hold`.
        ValueError: A value out of range. Both before any I/O.
    """

    @explains_misuse
    def __init__(
        self, client: Client, name: str, *, keep: Duration,
        ttl: Duration = 30.0, acquire_timeout: Duration | None = None, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, replicas: Replicas = 0,
        min_uptime: Duration = 0.0, track: bool = False, max_waiting: int | None = None, note: str | None = None,
        prefix: str = "aiolocks:",
        errors: Literal["share", "retry"] = "share", dumps: Dumps = _dumps, loads: Loads = json.loads,
    ) -> None:  # fmt: skip
        options = options_of(
            ttl, acquire_timeout, "cancel", True, max_hold, watchdog, max_stall, replicas, True, min_uptime, 0.0, track,
            max_waiting, note,
        )  # fmt: skip
        if errors not in ("share", "retry"):
            raise ValueError(f'errors must be "share" or "retry", not {errors!r}')
        for what, function in (("dumps", dumps), ("loads", loads)):
            if not callable(function):
                raise TypeError(f"{what} must be a function, not {type(function).__name__}")
        kept_for = check_within_reason("keep", keep)
        self._ttl = options.ttl
        self._primitive = runner = _Runner(client, name, prefix, options)
        self._store = Store(lambda: runner._session().context, runner._keys, kept_for, options.ttl)
        self._shares_errors = errors == "share"
        self._dumps, self._loads = dumps, loads

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._primitive.name

    def __repr__(self) -> str:
        return f"<Once {self.name!r}>"

    async def run(
        self, function: Callable[[], Awaitable[T]], *,
        timeout: Duration | Unset | None = UNSET, fingerprint: str | None = None,
    ) -> T:  # fmt: skip
        """Return the kept outcome; or wait for that of a caller who runs already; or run ``await function()``.

        The function runs in a task of its own, with a copy of the context of its caller.

        Args:
            function: A coroutine function without parameters: ``lambda: fetch_rates(day)``.
            timeout: Seconds to wait for another caller. Left out: `acquire_timeout`. None waits for ever. 0 runs, or
                raises at once. It never ends this caller's own function.
            fingerprint: A text that identifies the request, such as a hash of its body. A kept outcome with another one
                is not returned.

        Raises:
            AcquireTimeoutError: Another caller ran all the time.
            QueueFullError: Another process runs, and as many as `max_waiting` wait for it.
            OnceFailedError: The function failed in another process while this caller was waiting.
            OutcomeMismatchError: An outcome with another fingerprint is kept.
            LeaseLostError: The lease was lost while this caller's function ran, or before its outcome was written.
            RuntimeError: The function calls `run` of its own name, or the manager is closed.
            ValueError: The kept outcome cannot be read; `forget` removes it. An exception of `loads` leaves unchanged.
            RedisError: Redis could not be asked.
            Exception: Any exception of the function, or of `dumps`.

        Cancelling one caller changes nothing for the others. When the last one is cancelled, so is the function, and
        that caller waits for its end. An outcome that is being written then is still written.
        """
        given: object = function
        if not callable(given):
            if asyncio.iscoroutine(given):
                given.close()
            raise TypeError("run() takes the function itself: run(fetch), or run(lambda: fetch(42)), not run(fetch())")
        seconds = self._primitive._timeout(timeout)
        check_fingerprint(fingerprint)
        self._check_open()
        loop, lock = asyncio.get_running_loop(), self._primitive
        flight = flight_of((id(loop), id(lock._pool), lock._keys.base), lock.name)
        return cast("T", await flight.wait(Caller(self, function, fingerprint, seconds, loop.create_future())))

    async def outcome(self) -> Outcome | None:
        """Return the kept outcome, or None. Cancelling is harmless.

        Raises:
            ValueError: It cannot be read. An exception of `loads` leaves unchanged.
            RedisError: Redis could not be asked.
        """
        self._check_open()
        record = await self._store.kept()
        if record is None:
            return None
        return Outcome(record.value(self._loads), datetime.fromtimestamp(record.at, UTC), record.fence)

    async def forget(self) -> None:
        """Remove the kept outcome, so that the next caller runs. A run that has begun still keeps its outcome.

        Raises:
            RedisError: Not confirmed. The same after a cancellation.
        """
        self._check_open()
        await self._store.forget()

    async def holders(self) -> tuple[Holder, ...]:
        """Ask Redis who runs: one `Holder` or none; see `Lock.holders`."""
        return await self._primitive.holders()

    async def waiters(self) -> tuple[Waiter, ...]:
        """Ask Redis who waits: a `Waiter` for each process, not for each caller; see `Lock.waiters`."""
        return await self._primitive.waiters()

    async def revoke(
        self, *, fencing_token: int | None = None, force: bool = False, timeout: Duration | None = None,
        reason: str | None = None,
    ) -> tuple[Holder, ...]:  # fmt: skip
        """Stop the runner, whose function is cancelled; then the next caller runs. See `Lock.revoke`."""
        return await self._primitive.revoke(fencing_token=fencing_token, force=force, timeout=timeout, reason=reason)

    def _check_open(self) -> None:
        closing = self._primitive._closing
        if closing is not None and closing.closed:
            raise closed_error("once", self.name)

    async def _call(self, function: Callable[[], Awaitable[object]]) -> tuple[object, bytes]:
        """Call *function*. Return its value, and that encoded."""
        awaited: object = function()
        if not inspect.isawaitable(awaited):
            raise TypeError(f"once {self.name!r}: the function must be a coroutine function (async def)")
        value = await awaited
        try:
            encoded: object = self._dumps(value)
            if not isinstance(encoded, bytes):
                raise TypeError(f"dumps must return bytes, not {type(encoded).__name__}")
        except Exception as error:
            error.add_note(f"once {self.name!r}: the function returned, and dumps could not encode its value")
            raise
        return value, encoded


def check_fingerprint(fingerprint: str | None) -> None:
    """Raise TypeError or ValueError unless *fingerprint* is None or a short text."""
    given: object = fingerprint
    if given is not None and not isinstance(given, str):
        raise TypeError(f"fingerprint must be a str or None, not {type(given).__name__}")
    if fingerprint is not None and len(fingerprint) > _MAX_FINGERPRINT:
        raise ValueError(
            f"fingerprint must have at most {_MAX_FINGERPRINT} characters, not {len(fingerprint)}: use a hash"
        )
