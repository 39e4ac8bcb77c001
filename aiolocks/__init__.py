"""Locks and semaphores for asyncio programs, shared across processes and machines through Redis."""

from ._acquirable import Statistics
from ._errors import (
    AcquireTimeoutError,
    LeaseLostError,
    LimitMismatchError,
    LockError,
    QuorumError,
    VersionConflictError,
)
from ._hierarchy import HierarchicalLock
from ._lease import Lease
from ._lock import Lock
from ._manager import LockManager
from ._multilock import MultiLock
from ._redlock import Redlock
from ._rlock import RLock
from ._rwlock import RWLock
from ._semaphore import Semaphore
from ._versioned import Versioned
from ._with_lock import with_lock

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeoutError",
    "HierarchicalLock",
    "Lease",
    "LeaseLostError",
    "LimitMismatchError",
    "Lock",
    "LockError",
    "LockManager",
    "MultiLock",
    "QuorumError",
    "RLock",
    "RWLock",
    "Redlock",
    "Semaphore",
    "Statistics",
    "VersionConflictError",
    "Versioned",
    "with_lock",
]
