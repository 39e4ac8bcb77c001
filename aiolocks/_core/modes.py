"""What a lease of a shared name lets its holder do, as numbers: they travel where a semaphore's permits do.

Which of them go together is decided by the scripts alone; see `lua/_shared.lua`.
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
"""Exclusive, beside the upgradeable lease that it grew from."""

FRONT: Final = 1
"""The ticket of what stands before all others, as they wait for what it holds already: an upgrade, and the levels
of a second path."""
