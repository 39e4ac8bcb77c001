"""Programs that run to their end, and what they print."""

import os
import subprocess
import sys

from tests.support.children import family
from tests.support.workers import REPOSITORY, environment


def printed(*arguments: str | os.PathLike[str]) -> str:
    """Run this Python with *arguments*; return what it prints on both streams, and its exit status if that is not 0."""
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with family(sys.executable, *arguments, cwd=REPOSITORY, env=environment(), **streams) as program:
        said, _ = program.communicate(timeout=50)
    return said + (f"exit status {program.returncode}" if program.returncode else "")
