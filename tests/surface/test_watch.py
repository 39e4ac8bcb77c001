"""`aiolocks watch`: its pictures at 80 and 120 columns, its keys, its plain text, and what it costs the server."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from rich.console import Console

from aiolocks import LockManager
from aiolocks.cli import main
from aiolocks.cli._names import Name, Person
from aiolocks.cli._nodes import Primaries
from aiolocks.cli._watch._board import Board
from aiolocks.cli._watch._live import details, table
from aiolocks.cli._watch._watcher import Watcher
from tests.support.lateness import SLACK, assert_within
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer
from tests.support.workers import REPOSITORY, environment
from tests.surface.commands import Capsys, Command
from tests.surface.test_run import WITHIN
from tests.surface.test_run_terminal import Terminal

pytestmark = [pytest.mark.rest, pytest.mark.redis, pytest.mark.leaves_residue]

PICTURES = REPOSITORY / "examples" / "pictures"


def sample() -> Board:
    """A board with a few names, as a server might have them."""
    board = Board(Primaries([]), "aiolocks:")
    board.wake_ups = 1234
    called: dict[str, Any] = {"host": "web1", "pid": 4711, "holder": "billing", "task": "pay"}
    people = [
        Person("Zk3xV9aLq0s", b"", 12 + at, 28.4 - at, fencing_token=1795467513896108 + at, **called) for at in range(3)
    ]
    waiters = [Person("q8Hs7Tn1YbE", b"", 3.2 - at, None, host=f"worker{at}", pid=815) for at in range(3)]
    rows = [
        Name("lock", "orders:42", b"1", people[:1], 1, 3, waiters),
        Name("semaphore", "scraper", b"2", people, 3, 17, [], 10),
        Name("rwlock", "price-list:europe:with-a-name-that-is-long", b"3", people[:1], 1, 0),
        Name("hierarchy", "shop/orders/42", b"4", people[1:2], 1, 0),
        Name("lock", "nightly", b"5", [Person("Zk3xV9aLq0s", b"", 7200, 0.4, fencing_token=1)], 1, 0),
        Name("multilock", "account:7", b"6", [], 0, 2),
    ]
    board._names = {row.base: row for row in rows}
    return board


def drawn(width: int, *, height: int = 24, inspects: bool = False) -> str:
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    board = sample()
    rows = board.listed()
    console.print(details(board, rows[1], width, height) if inspects else table(board, rows, width, height, 1))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"


@pytest.mark.smoke
@pytest.mark.parametrize("width", [80, 120])
def test_the_pictures_are_what_watch_shows(width: int) -> None:
    """`python -m tests.surface.test_watch` draws them anew."""
    shown = drawn(width)
    assert max(map(len, shown.splitlines())) <= width
    for word in ("orders:42", "scraper", "web1:4711", "17", "sorted by waiting", "1,234 wake-ups/s"):
        assert word in shown
    picture = PICTURES / f"watch-{width}.txt"
    assert picture.read_text(encoding="utf-8") == shown + "\n" + drawn(width, inspects=True)
    assert "2 more below" in drawn(width, height=8)


@asynccontextmanager
async def watching(server: RedisServer, *options: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Run `aiolocks watch` without a terminal, and give what reads a line of it."""
    command = [sys.executable, "-m", "aiolocks", "watch", *options, "--interval", "0.2", "--url", server.tcp_url]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert process.stdout is not None
    output = process.stdout
    yield lambda: asyncio.wait_for(output.readline(), WITHIN)
    process.terminate()
    await process.communicate()


async def test_off_a_terminal_it_is_plain_text(locks: LockManager, own_server: RedisServer, command: Command) -> None:
    """Or a JSON object for each look."""
    async with locks.lock("orders:42") as lease, locks.semaphore("scraper", 3):
        told = (await command("watch", "--once", "--json", "--sort", "name")).json()
        assert (told["held"], told["waiting"]) == (2, 0)
        assert told["wake_ups_per_second"] is None or told["wake_ups_per_second"] >= 0
        first, second = told["names"]
        assert (first["name"], first["holders"][0]["fencing_token"]) == ("orders:42", lease.fencing_token)
        assert (second["kind"], second["limit"]) == ("semaphore", 3)
        said = await command("watch", "--once")
        assert (said.status, "\x1b" in said.out) == (0, False)
        assert said.out.startswith("2 held, 0 waiting")
        assert re.search(r"(?m)^lock .* orders:42$", said.out)
        async with watching(own_server) as line:
            for _ in range(3):
                while b"2 held" not in (look := await line()):
                    assert look


def test_on_a_terminal_without_its_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    monkeypatch.setitem(sys.modules, "aiolocks.cli._watch._live", None)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert main(["watch"]) == 2
    said = "aiolocks watch: on a terminal it needs the extra 'demo' of aiolocks; or use --once\n"
    assert capsys.readouterr().err == said


class Watch(Terminal):
    """`aiolocks watch` at a terminal of 80 columns."""

    def __init__(self, url: str, *, ignores: signal.Signals | None = None) -> None:
        env = environment({"TERM": "xterm", "AIOLOCKS_URL": url})
        command = [sys.executable, "-m", "aiolocks", "watch", "--interval", "0.2"]
        super().__init__(command, env, lambda: ignores and signal.signal(ignores, signal.SIG_IGN))


async def test_keys_choose_inspect_sort_filter_and_quit(locks: LockManager, own_server: RedisServer) -> None:
    async with locks.lock("first"), locks.lock("second"):
        terminal = Watch(own_server.tcp_url)

        def play() -> int:
            terminal.play(
                ("", "second"), ("j\r", "lock second: 1 held.*(?s:.*)fencing token"), ("\x1b", "sorted by waiting"),
                ("s", "sorted by name"), ("/fir\r", "filter: fir(?![_a-z])"),
            )  # fmt: skip
            terminal.press("q")
            return terminal.ends()[0]

        assert await asyncio.to_thread(play) == 0


def test_watch_ends_when_its_terminal_hangs_up_though_the_signal_of_that_is_ignored(own_server: RedisServer) -> None:
    terminal = Watch(own_server.tcp_url, ignores=signal.SIGHUP)
    terminal.sees("0 held")
    os.close(terminal.fd)
    give_up_at = time.monotonic() + WITHIN
    try:
        while not (ended := os.waitpid(terminal.pid, os.WNOHANG))[0]:
            assert time.monotonic() < give_up_at, Path(f"/proc/{terminal.pid}/stat").read_text()
            time.sleep(0.01)
    except BaseException:
        os.kill(terminal.pid, signal.SIGKILL)
        os.waitpid(terminal.pid, 0)
        raise
    assert os.waitstatus_to_exitcode(ended[1]) == 2  # the output cannot be written


def test_an_outage_is_shown_with_its_beginning_and_ends_by_itself(own_server: RedisServer) -> None:
    terminal = Watch(own_server.tcp_url)
    terminal.sees("0 held")
    own_server.kill()
    terminal.sees(r"nothing is known since \d\d:\d\d:\d\d UTC")
    own_server.restart()
    terminal.sees("0 held")
    terminal.press("q")
    assert terminal.ends()[0] == 0


async def test_without_a_terminal_an_outage_is_a_line_and_ends_by_itself(own_server: RedisServer) -> None:
    async with watching(own_server, "--json") as line:

        async def look_that_is(known: bool) -> dict[str, Any]:
            while True:
                told: dict[str, Any] = json.loads(await line())
                if (told["unknown_since"] is None) == known:
                    return told

        await look_that_is(known=True)
        own_server.kill()
        first, second = [(await look_that_is(known=False))["unknown_since"] for _ in range(2)]
        assert first == second
        own_server.restart()
        await look_that_is(known=True)


@pytest.mark.faults
@pytest.mark.slow
async def test_behind_sentinels_a_deposed_primary_is_looked_at_no_more() -> None:
    """It answers for up to 11 s after another has taken its place."""
    with SentinelSet() as sentinels:
        async with LockManager.from_url(sentinels.url, ttl=30) as locks:
            board = Board(Primaries([]), "aiolocks:")
            watcher = Watcher(board, sentinels.url)
            await watcher.begin()
            await asyncio.to_thread(sentinels.failover)
            async with locks.lock("orders:42"):
                await watcher.refresh([])
                assert [name.name for name in board.listed()] == ["orders:42"]
            await watcher.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_ten_thousand_names_cost_the_server_a_hundredth_of_its_time(own_server: RedisServer) -> None:
    async with Redis.from_url(own_server.url) as client:
        locks = LockManager(client, ttl=100, renew=False)
        await asyncio.gather(*(locks.lock(f"order:{number}").acquire() for number in range(10_000)))
        board = Board(Primaries([client]), "aiolocks:")
        await board.begin()
        assert len(board.listed()) == 10_000
        await client.config_resetstat()
        looks = 20
        for _ in range(looks):
            await board.refresh(board.listed()[:40])
        stats = await client.info("commandstats")
        spent = sum(of["usec"] for of in stats.values()) / 1e6
        print(f"{1000 * spent / looks:.2f} ms of the server's time for each look")
        assert_within(spent / looks, SLACK * 0.01)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for columns in (80, 120):
        text = f"{drawn(columns)}\n{drawn(columns, inspects=True)}"
        (PICTURES / f"watch-{columns}.txt").write_text(text, encoding="utf-8")
