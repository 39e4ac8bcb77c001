"""A redis-server whose wall clock can be stepped: by a small shim, built here and preloaded into it.

Linux only; a C compiler must be on PATH as `cc`.
"""

import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import final

_SOURCE = Path(__file__).with_suffix(".c")


class NoShim(RuntimeError):
    """The shim cannot be built here; the text says what is missing."""


@final
class ServerClock:
    """The wall clock of servers that are started with its `environment`. Files go into *directory*.

    Raises:
        NoShim: This is not Linux, or there is no compiler.
    """

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if sys.platform != "linux" or compiler is None:
            raise NoShim("stepping a server's clock needs Linux and a C compiler on PATH (Debian: apt-get install gcc)")
        library = directory / "server_clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, _SOURCE], check=True)
        offset = directory / "clock"
        offset.write_bytes(bytes(mmap.PAGESIZE))
        with offset.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "AIOLOCKS_CLOCK": str(offset)}

    @property
    def ahead(self) -> float:
        """Seconds by which the servers' clock is ahead of this machine's."""
        microseconds: int = struct.unpack_from("=q", self._map)[0]
        return microseconds / 1e6

    def step(self, seconds: float) -> None:
        """Move it by so many seconds, at once."""
        self._map[:8] = struct.pack("=q", round((self.ahead + seconds) * 1e6))

    def close(self) -> None:
        self._map.close()
