"""The modes of a lease of a shared name, as numbers: they are sent where a semaphore sends its permits.

The scripts alone decide which modes may be held together; see `lua/libraries/modes.lua`.
"""

from typing import Final

INTENT_SHARED: Final = 1
"""A level below in the path is held shared."""
INTENT_EXCLUSIVE: Final = 2
"""A level below in the path is held exclusively."""
SHARED: Final = 3
SHARED_INTENT_EXCLUSIVE: Final = 4
UPGRADEABLE: Final = 5
"""Shared, and the only mode that may become exclusive."""
EXCLUSIVE: Final = 6
UPGRADE: Final = 7
"""Exclusive, beside the upgradeable lease that it upgrades."""

MODE_NAMES: Final = {
    INTENT_SHARED: "intent-read", INTENT_EXCLUSIVE: "intent-write", SHARED: "read",
    SHARED_INTENT_EXCLUSIVE: "read+intent-write", UPGRADEABLE: "upgradeable", EXCLUSIVE: "write", UPGRADE: "write",
}  # fmt: skip
"""The words for them in `Holder`, `Waiter` and on the command line."""

FRONT: Final = 1
"""The ticket that passes the queue, for a task that already holds a lease: an upgrade, or levels of a second path."""
