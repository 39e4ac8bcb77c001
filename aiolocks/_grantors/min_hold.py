"""`min_hold`: a lease that is released early still keeps the name, until so long after its grant (W18)."""

from typing import final

from .._core.options import Options
from .._engine.extension import Extension


@final
class MinHold(Extension):
    """Asks for it when the lease is released. A request that its caller never held is undone at once."""

    for_parts = True

    def __init__(self, ms: int, *, held: bool = False) -> None:
        """Keep the name for *ms* from the grant on; below 0, for so long from the release on (W28)."""
        self._ms = ms
        self._held = held

    def held(self) -> "MinHold":
        return MinHold(self._ms, held=True)

    def release_arguments(self) -> tuple[int, ...]:
        return (self._ms,) if self._held else ()  # defect: W28-held


def min_hold_of(options: Options) -> tuple[MinHold, ...]:
    """Return the extension that *options* ask for, if any."""
    return (MinHold(options.min_hold_ms),) if options.min_hold_ms else ()
