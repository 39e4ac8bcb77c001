"""Locks and semaphores for asyncio programs, shared across processes and machines through Redis."""

import sys
from typing import TYPE_CHECKING

if sys.argv[:1] == ["-m"] or (sys.argv[:1] and sys.argv[0].rpartition("/")[2] == "aiolocks"):
    # The command line: until its `main` runs, Ctrl-C ends the process without a traceback of half-done imports.
    from ._core import interrupts

    interrupts.end_at_once()

from ._core import VERSION
from ._core.errors import (
    AcquireTimeoutError,
    LeaseLostError,
    LimitMismatchError,
    LockError,
    OnceFailedError,
    OutcomeMismatchError,
    QueueFullError,
    QuorumError,
    VersionConflictError,
)
from ._core.hints import missing_from_package
from ._core.values import Holder, Statistics, Waiter
from ._decorator import once, with_lock
from ._election import Election
from ._engine.lease import Lease
from ._manager import LockManager
from ._once import Once
from ._once_outcome import Outcome
from ._primitives.hierarchy import HierarchicalLock
from ._primitives.lock import Lock
from ._primitives.multilock import MultiLock
from ._primitives.redlock import Redlock
from ._primitives.rlock import RLock
from ._primitives.rwlock import RWLock
from ._primitives.semaphore import Semaphore
from ._primitives.versioned import Versioned
from ._rate_limiter import RateLimiter

__version__ = VERSION

__all__ = [
    "AcquireTimeoutError",
    "Election",
    "HierarchicalLock",
    "Holder",
    "Lease",
    "LeaseLostError",
    "LimitMismatchError",
    "Lock",
    "LockError",
    "LockManager",
    "MultiLock",
    "Once",
    "OnceFailedError",
    "Outcome",
    "OutcomeMismatchError",
    "QueueFullError",
    "QuorumError",
    "RLock",
    "RWLock",
    "RateLimiter",
    "Redlock",
    "Semaphore",
    "Statistics",
    "VersionConflictError",
    "Versioned",
    "Waiter",
    "once",
    "with_lock",
]

if not TYPE_CHECKING:  # type checkers know what there is
    __getattr__ = missing_from_package
