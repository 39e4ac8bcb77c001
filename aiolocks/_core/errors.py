"""Every error class of aiolocks.

    redis.exceptions.LockError            (a ValueError, by redis-py's choice)
    └─ LockError
       ├─ AcquireTimeoutError             also a TimeoutError
       │  └─ QueueFullError
       ├─ LeaseLostError                  also redis.exceptions.LockNotOwnedError
       ├─ LimitMismatchError
       ├─ OnceFailedError
       ├─ OutcomeMismatchError
       ├─ QuorumError
       └─ VersionConflictError

redis-py's own exceptions, such as those of the connection, are not wrapped.
"""

from collections.abc import Mapping
from typing import Any

from redis import exceptions as redis_exceptions

from .values import Holder


class LockError(redis_exceptions.LockError):
    """The base class of all errors below.

    Attributes:
        name: The name, as the caller gave it. redis-py calls it `lock_name`, which is set too.
    """

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message, name)
        # equivalent: line dropped, newer versions do it themselves
        self.args = (message,)  # redis-py 6.0 does not set them, and neither does a TimeoutError that is made so
        self.name = name

    # Python's own version calls the class with `args`, which lack the keyword arguments. A process pool treats an error
    # that it cannot unpickle as the death of its worker. Users' subclasses may take other arguments.
    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), vars(self)

    def __repr__(self) -> str:  # redis-py's shows the class alone
        return f"{type(self).__name__}({str(self)!r})"


class AcquireTimeoutError(LockError, TimeoutError):
    """Not granted within the time the caller was willing to wait. Nothing is held or queued any more.

    Attributes:
        timeout: Seconds the caller was willing to wait.
        retry_after: Seconds after which a retry may succeed: the time left of the present holder's lease. A live
            holder renews that lease, so this is a hint, fit for a ``Retry-After`` header. None means that it is not
            known, because that lease has no expiry. During a `pause` of a semaphore, it is the time until the pause
            ends, or until the lease does if that is later and no permits are free. For a `RateLimiter`, it is the time
            until the next start can be free.
        holders: Tuple of the `Holder`s 50 ms before the timeout. For a `MultiLock` or a path, they are those of the
            name or level that the caller waited for. None if the timeout was a second or less, or if Redis did not
            answer in time. The text of the error describes the first few of them.
    """

    def __init__(
        self, message: str, *, name: str, timeout: float, retry_after: float | None,
        holders: tuple[Holder, ...] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, name=name)
        self.timeout = timeout
        self.retry_after = retry_after
        self.holders = holders


class QueueFullError(AcquireTimeoutError):
    """The name is busy, and as many callers wait already as `max_waiting` allows. This caller was not queued.

    Attributes:
        timeout: Always 0.0. For a `MultiLock` or a path, the caller can have waited for another name before.
        waiting: Number of waiters, counted up to `max_waiting`.
    """

    def __init__(self, message: str, *, name: str, timeout: float, retry_after: float | None, waiting: int) -> None:
        super().__init__(message, name=name, timeout=timeout, retry_after=retry_after)
        self.waiting = waiting


class LeaseLostError(LockError, redis_exceptions.LockNotOwnedError):
    """The lease ended before the work did: another caller may hold the name now. Roll back, or stop.

    Attributes:
        fencing_token: The fencing token of the lost lease.
        reason: Why it was lost, in a few words. It begins with "revoked" if an operator ended the lease: "revoked", or
            "revoked: deploy 1.7" after ``lock.revoke(reason="deploy 1.7")``.
    """

    def __init__(self, message: str, *, name: str, fencing_token: int, reason: str) -> None:
        super().__init__(message, name=name)
        self.fencing_token = fencing_token
        self.reason = reason


class LimitMismatchError(LockError):
    """More permits were asked for than the semaphore's limit in force, so the wait could never end.

    Attributes:
        permits: The number of permits that were asked for.
        limit: The limit in force on the server, which may differ from this process's own.
    """

    def __init__(self, message: str, *, name: str, permits: int, limit: int) -> None:
        super().__init__(message, name=name)
        self.permits = permits
        self.limit = limit


class OnceFailedError(LockError):
    """The function of a `Once` failed in another process, while this caller was waiting. The text names the exception.

    Attributes:
        name: The name of the `Once`.
    """


class OutcomeMismatchError(LockError):
    """The kept outcome of a `Once` has another fingerprint: its name was used for another request.

    Attributes:
        name: The name of the `Once`.
    """


class QuorumError(LockError):
    """Too few servers of a `Redlock` answered. If enough answer "busy", it is an AcquireTimeoutError instead.

    Attributes:
        outcomes: The reply of each server, or why there was none, by its address.
    """

    def __init__(self, message: str, *, name: str, outcomes: Mapping[str, str]) -> None:
        super().__init__(message, name=name)
        self.outcomes = outcomes


class VersionConflictError(LockError):
    """Another client has written the value since it was read. Nothing was changed: read it again.

    Attributes:
        name: The key of the value.
        expected: The version that the writer had read.
        actual: The version that was found.
    """

    def __init__(self, message: str, *, name: str, expected: str, actual: str) -> None:
        super().__init__(message, name=name)
        self.expected = expected
        self.actual = actual


def _again(kind: type[LockError], args: tuple[object, ...]) -> LockError:
    """Return an error of *kind* with *args* and no other state, without calling its `__init__`."""
    # `kind.__new__` would be that of ValueError, which fails for an OSError.
    base = OSError if issubclass(kind, OSError) else Exception
    error = base.__new__(kind, *args)
    error.args = args  # an OSError sets them in `__init__` only
    return error
