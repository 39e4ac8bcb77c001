"""Every Python block of the README is a program that runs, without a warning, on a real server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import RedisServer

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^(<!-- run: fragment -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SLOW = re.compile(r"^Executing <.*> took [\d.]+ seconds\n", re.MULTILINE)
"""What asyncio's debug mode says of a step that took 0.1 s: a busy machine is nobody's fault."""

FRAME = """
import asyncio
from redis.asyncio import Redis
from aiolocks import Lock

async def main():
    async with Redis() as redis:
        lock = Lock(redis, "orders:42")
{body}

asyncio.run(main())
"""


def blocks() -> list[tuple[int, str]]:
    """Return each block as a program, with the line it begins at."""
    text = README.read_text(encoding="utf-8")
    found: list[tuple[int, str]] = []
    for block in BLOCK.finditer(text):
        program = block[2]
        if block[1]:
            indented = "".join(f"        {line}" for line in program.splitlines(keepends=True))
            program = FRAME.format(body=indented)
        found.append((text.count("\n", 0, block.start(2)), program))
    return found


@pytest.mark.parametrize(("line", "program"), blocks(), ids=lambda value: str(value) if isinstance(value, int) else "")
def test_a_block_of_the_readme_runs_as_it_stands(line: int, program: str, server: RedisServer) -> None:
    program = program.replace("Redis()", f"Redis.from_url({server.url!r})").replace("redis://localhost", server.url)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, timeout=30
    )
    said = SLOW.sub("", done.stderr)
    assert (done.returncode, said) == (0, ""), f"README.md, line {line}"
