"""What a lease of a shared name lets its holder do, as numbers: they are sent where a semaphore sends its permits.

The scripts alone decide which of them may be held together; see `lua/libraries/modes.lua`.
"""

from typing import Final

INTENT_SHARED: Final = 1
"""Something further down a path is held shared."""
INTENT_EXCLUSIVE: Final = 2
"""Something further down a path is held exclusively."""
SHARED: Final = 3
SHARED_INTENT_EXCLUSIVE: Final = 4
UPGRADEABLE: Final = 5
"""Shared, and the only one that may become exclusive."""
EXCLUSIVE: Final = 6
UPGRADE: Final = 7
"""Exclusive, beside the upgradeable lease that it upgrades."""

FRONT: Final = 1
"""The ticket that passes the queue, for a request whose task already holds what the others wait for: an upgrade, and
the levels of a second path."""
