"""`python -m aiolocks`: the same as the command `aiolocks`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
