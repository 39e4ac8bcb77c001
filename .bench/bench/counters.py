"""The server's counters, read over a connection of the bench, whose share is subtracted."""

from dataclasses import dataclass
from typing import Self, final

from redis import Redis


@dataclass(frozen=True, slots=True)
class Counts:
    """The server's counters at one instant."""

    reads: int
    """Times that it read from a client's socket."""
    commands: int
    """Calls of commands, those inside of scripts included."""
    cpu: float
    """Seconds of processor time."""


@final
class Counters:
    """Call `read` before and after the measured work. `Counts` leave out this class's own commands."""

    def __init__(self, admin_url: str) -> None:
        self._admin = Redis.from_url(admin_url)
        self._asked = 0
        self._admin.ping()

    def read(self) -> Counts:
        """Return the counts now. Each call is one INFO: one read, one command."""
        self._asked += 1
        info = self._admin.info("everything")
        calls = sum(value["calls"] for key, value in info.items() if key.startswith("cmdstat_"))
        return Counts(
            reads=info["total_reads_processed"] - self._asked,
            commands=calls - self._asked + 1,  # the INFO that asks is not in its own statistics yet
            cpu=info["used_cpu_user"] + info["used_cpu_sys"],
        )

    def calls(self) -> dict[str, int]:
        """Return how often each command was called since the server's statistics were last reset."""
        self._asked += 1
        return {key.removeprefix("cmdstat_"): value["calls"] for key, value in self._admin.info("commandstats").items()}

    def connections(self) -> int:
        """Return how many connections others have."""
        self._asked += 1
        return len(self._admin.client_list()) - 1

    def close(self) -> None:
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
