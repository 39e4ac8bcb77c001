"""Measure aiolocks beside its peers (`python .bench --help`), or what a server has to hold (`python .bench sizing`).

The package `bench` beside this file is imported from here, and `aiolocks` and `tests` from the repository.
"""

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from bench import command, sizing  # noqa: E402  # the path comes first

if __name__ == "__main__":
    sys.exit(asyncio.run(sizing.main()) if sys.argv[1:] == ["sizing"] else command.main())
