"""Locks and semaphores for asyncio programs, shared across processes and machines through Redis."""

from ._acquirable import Statistics
from ._errors import AcquireTimeoutError, LeaseLostError, LimitMismatchError, LockError
from ._lease import Lease
from ._lock import Lock
from ._manager import LockManager
from ._rwlock import RWLock
from ._semaphore import Semaphore

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeoutError",
    "Lease",
    "LeaseLostError",
    "LimitMismatchError",
    "Lock",
    "LockError",
    "LockManager",
    "RWLock",
    "Semaphore",
    "Statistics",
]
