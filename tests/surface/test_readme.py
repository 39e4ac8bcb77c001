"""Every Python block of a page runs on a real server; links lead somewhere, and sentences are read once."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cases import one_by_one
from tests.support.postgres import postgres
from tests.support.servers import RedisServer

pytestmark = pytest.mark.rest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(f".docs/{page.name}" for page in (REPOSITORY / ".docs").glob("*.md"))
DOCUMENTS = ["README.md", "examples/README.md", "examples/OPERATING.md", *PAGES]
FOR_CONTRIBUTORS = [
    ".bench/README.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", "CHANGELOG.md", "aiolocks/ARCHITECTURE.md",
    "tests/README.md",
]  # fmt: skip

BLOCK = re.compile(r"^(<!-- run: fragment -->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SLOW = re.compile(r"^Executing <.*> took [\d.]+ seconds\n", re.MULTILINE)
"""What asyncio's debug mode says of a step that took 0.1 s: a busy machine is nobody's fault."""

LOGGED = re.compile(
    r"^.*(?:; stop acting on it|; it is tried again for .*|request refused: Redis could not be asked .*)\n",
    re.MULTILINE,
)
"""The warnings of a lost lease and of an outage, which a program without a logging configuration prints to stderr."""

FRAME = """
import asyncio
import signal
import time
from redis.asyncio import Redis
from aiolocks import AcquireTimeoutError, Election, Lock, LockManager, MultiLock, Once, RateLimiter, RWLock
from aiolocks import Semaphore, with_lock

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


PROGRAMS = [pytest.param(*block, id=block[0]) for block in blocks()]
POSTGRES = "postgresql://localhost/shop"
SQLITE = 'create_engine("sqlite://")'


def run(program: str, place: str, server: RedisServer) -> None:
    """Run a program with this Redis, as with the one on localhost; it must end well and without a warning."""
    program = program.replace("Redis()", f"Redis.from_url({server.url!r})").replace("redis://localhost", server.url)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, timeout=50
    )
    said = LOGGED.sub("", SLOW.sub("", done.stderr))
    assert (done.returncode, said) == (0, ""), place


@pytest.fixture
def database() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.mark.parametrize(("place", "program"), PROGRAMS)
def test_a_block_runs_as_it_is(place: str, program: str, server: RedisServer, request: pytest.FixtureRequest) -> None:
    for library in ("psycopg", "sqlalchemy"):
        if f"import {library}" in program or f"from {library}" in program:
            pytest.importorskip(library)
    if POSTGRES in program:
        program = program.replace(POSTGRES, request.getfixturevalue("database"))
    run(program, place, server)


def test_what_runs_on_sqlite_by_sqlalchemy_runs_on_postgresql_too(database: str, server: RedisServer) -> None:
    pytest.importorskip("psycopg")
    pytest.importorskip("sqlalchemy")
    (found,) = [(place, program) for place, program in blocks() if SQLITE in program]
    place, program = found
    url = database.replace("postgresql:", "postgresql+psycopg:")
    run(program.replace(SQLITE, f"create_engine({url!r})"), place, server)


COMMAND = re.compile(r"^\.venv/bin/aiolocks (?!demo|bench|completion)(.*)$", re.MULTILINE)
IN_A_SENTENCE = re.compile(r"`aiolocks ([a-z]+(?: [^`…]*)?)`")
OTHER_COMMANDS = re.compile(
    r"python3 -m venv|(\.venv/bin/)?pip (install|wheel) |export AIOLOCKS_URL=|PYTHONASYNCIODEBUG=1 |git worktree add |"
    r"\.venv/bin/python (-m|\.bench)|\.venv/bin/aiolocks "
)


def shell_lines() -> list[tuple[str, str]]:
    """Return each line of the pages' blocks for a shell, with its document."""
    return [
        (document, line)
        for document in DOCUMENTS
        for block in re.findall(
            r"^```sh\n(.*?)^```$", (REPOSITORY / document).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        for line in block.splitlines()
    ]


@pytest.mark.smoke
def test_each_line_for_a_shell_is_a_command_that_tests_know() -> None:
    assert [line for line in shell_lines() if not OTHER_COMMANDS.match(line[1])] == []


def commands() -> list[str]:
    """Return what the pages show behind `aiolocks`: in blocks for a shell, and in sentences."""
    in_blocks = {found[1] for _, line in shell_lines() if (found := COMMAND.match(line))}
    in_sentences = {one for page in DOCUMENTS for one in IN_A_SENTENCE.findall(prose(page)) if " " in one}
    return sorted(in_blocks | in_sentences)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_command_of_aiolocks_that_a_page_shows_is_right(server: RedisServer) -> None:
    assert len(commands()) > 15
    for command in commands():
        command = re.sub(r"redis://(localhost|HOST/1)", server.url, command).replace("COMMAND", "true")
        words = shlex.split(command.replace("NAME", "orders:42").replace(" N", " 5"), comments=True)
        words = ["true" if word.endswith(".sh") else word for word in words] + ["--once"] * (words[0] == "watch")
        done = subprocess.run(
            [sys.executable, "-m", "aiolocks", *words],
            env={**os.environ, "AIOLOCKS_URL": server.url}, capture_output=True, text=True, timeout=40,
        )  # fmt: skip
        assert done.returncode in (0, 1), (command, done.stderr)  # 1: nothing is held, or a danger was found


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
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250, f"{len(lines)} lines: what few readers need belongs on another page"
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.strip("|").split(" | ")]
    assert [cell for cell in cells if len(cell) > 120] == []


@pytest.mark.smoke
def test_a_step_of_the_tutorial_has_three_new_lines_at_most() -> None:
    steps = BLOCK.findall((REPOSITORY / ".docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert len(steps) == 8
    assert all(program.count("# new") <= 3 for _, program in steps)


@pytest.mark.smoke
def test_how_it_works_has_four_steps_and_200_words_at_most() -> None:
    text = (REPOSITORY / ".docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\d\. ", text, re.MULTILINE)) == 4
    assert len(text.split()) <= 200


FORBIDDEN = re.compile(
    r"\b(whoever|nobody|somebody|anew|in vain|befell|but for|none but|those who|those that|(?:is|are|be) told|for long"
    r"|as of|else it would)\b",
    re.IGNORECASE,
)
RARE = re.compile(r"\b(one that|that of)\b", re.IGNORECASE)


def prose(document: str) -> str:
    """Return its text without blocks of code, as one line."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    return " ".join(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL).split())


@pytest.mark.smoke
@one_by_one("document", DOCUMENTS)
def test_a_page_has_no_phrase_that_is_read_twice(document: str) -> None:
    assert FORBIDDEN.findall(prose(document)) == []


@pytest.mark.smoke
def test_phrases_that_hide_their_noun_are_rare() -> None:
    assert sum(len(RARE.findall(prose(document))) for document in DOCUMENTS) <= 10
