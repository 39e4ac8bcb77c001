"""All file descriptors of this process are taken, for programs of the fault tests."""

import contextlib
import os
import resource


def exhaust(limit: int) -> list[int]:
    """Lower the limit, and open files until none is left; return them."""
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    return taken
