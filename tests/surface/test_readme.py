"""Every Python block of the README and the cookbook is a program that runs, without a warning, on a real server.

And their links lead somewhere.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cases import one_by_one
from tests.support.servers import RedisServer

pytestmark = pytest.mark.rest

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "examples/README.md", "examples/OPERATING.md"]
FOR_CONTRIBUTORS = ["tests/README.md", ".bench/README.md", "aiolocks/ARCHITECTURE.md"]
BLOCK = re.compile(r"^(<!-- run: fragment -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SLOW = re.compile(r"^Executing <.*> took [\d.]+ seconds\n", re.MULTILINE)
"""What asyncio's debug mode says of a step that took 0.1 s: a busy machine is nobody's fault."""

LOSS = re.compile(r"^.*; stop acting on it\n", re.MULTILINE)
"""The warning of a lost lease, which a program without a logging configuration prints to stderr."""

FRAME = """
import asyncio
import signal
from redis.asyncio import Redis
from aiolocks import AcquireTimeoutError, Election, Lock, LockManager, MultiLock, RateLimiter, RWLock, Semaphore
from aiolocks import with_lock

async def main():
    async with Redis() as redis:
        lock = Lock(redis, "orders:42")
{body}

asyncio.run(main())
"""


LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")


def blocks() -> list[tuple[str, str]]:
    """Return each block as a program, with the document and the line it begins at."""
    found: list[tuple[str, str]] = []
    for document in DOCUMENTS:
        text = (REPOSITORY / document).read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            program = block[2]
            if block[1]:
                indented = "".join(f"        {line}" for line in program.splitlines(keepends=True))
                program = FRAME.format(body=indented)
            found.append((f"{document}:{text.count(chr(10), 0, block.start(2))}", program))
    return found


@pytest.mark.parametrize(("place", "program"), [pytest.param(*block, id=block[0]) for block in blocks()])
def test_a_block_runs_as_it_stands(place: str, program: str, server: RedisServer) -> None:
    program = program.replace("Redis()", f"Redis.from_url({server.url!r})").replace("redis://localhost", server.url)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, timeout=30
    )
    said = LOSS.sub("", SLOW.sub("", done.stderr))
    assert (done.returncode, said) == (0, ""), place


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.smoke
@one_by_one("document", [*DOCUMENTS, *FOR_CONTRIBUTORS])
def test_a_link_leads_somewhere(document: str) -> None:
    path = REPOSITORY / document
    for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{target}#{anchor}"


@pytest.mark.smoke
def test_the_readme_is_read_in_one_go() -> None:
    lines = len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines())
    assert lines <= 350, f"{lines} lines: what few readers need belongs in examples/cookbook.md or tests/README.md"
