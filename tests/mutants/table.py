"""Which files are mutated."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

LEFT_OUT = {"__init__", "__main__", "_web", "_web_background", "hints", "in_memory"}
"""No part of taking, keeping or letting go."""


def files(under: str = "") -> list[str]:
    package = REPOSITORY / "aiolocks"
    found = [path for path in (*package.glob("_*.py"), *package.glob("_*/*.py")) if path.stem not in LEFT_OUT]
    found += package.glob("_redis/lua/**/*.lua")
    return sorted(name for path in found if (name := str(path.relative_to(REPOSITORY))).startswith(under))
