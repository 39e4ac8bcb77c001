"""`aiolocks demo` as users run it: what it shows, its exit status, and what it leaves behind."""

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor as Threads
from contextlib import closing
from dataclasses import dataclass

import pytest
from redis import Redis

from aiolocks.cli import main
from tests.support.lateness import SLACK, assert_within
from tests.support.leftovers import is_residue
from tests.support.servers import RedisServer
from tests.support.workers import environment
from tests.surface.test_run import alive
from tests.surface.test_run_terminal import Terminal

pytestmark = [pytest.mark.timeout(120)]

TITLES = ("order", "exclusion", "limit", "renewal", "return", "loss", "fencing", "surprises")
PASSWORD = "sesame"
COMMAND = [sys.executable, "-W", "error", "-X", "dev", "-m", "aiolocks", "demo"]
UNHURRIED = f"""
import sys
from aiolocks.cli import main
from aiolocks.cli._demo import _stage
_stage.LONGEST *= {SLACK}
_stage._SPARE *= {SLACK}
sys.exit(main(["demo", *sys.argv[1:]]))
"""
"""The demo, which has as much time as this machine may need."""

ENVIRONMENT = environment({"PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"})
"""For the workers too."""


@dataclass(frozen=True)
class Run:
    status: int
    output: str
    errors: str
    seconds: float
    pid: int

    def verdicts(self) -> dict[str, bool]:
        return {title: word == "ok" for word, title in re.findall(r"^   (ok|FAILED) +(\w+)", self.output, re.M)}


@pytest.mark.redis
@pytest.mark.faults
def test_demo_keeps_its_word_and_says_so_when_it_cannot() -> None:
    """Three demos at once, as each takes its time: in memory, on a server, and on a database where a saboteur is."""
    with RedisServer(options={"requirepass": PASSWORD}) as server:
        url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}"
        sabotaged = f"{server.url}?db=5&password={PASSWORD}"
        with (
            closing(Redis(unix_socket_path=server.socket_path, db=5, password=PASSWORD)) as saboteur,
            Threads() as threads,
        ):
            threads.submit(sabotage, saboteur)
            memory, on_server, spoiled = threads.map(demo, [(), ("--url", url), ("--url", sabotaged)])
        with closing(Redis(unix_socket_path=server.socket_path, password=PASSWORD)) as admin:
            assert [key for key in admin.scan_iter() if not is_residue(key)] == []
    for run in (memory, on_server):
        it_shows_every_property_in_plain_text(run)
    assert "simulated" in memory.output
    pids = pids_in(on_server.output)
    assert len(set(pids.values()) | {on_server.pid}) == 8
    assert f"SIGKILL to process {pids['gus']}" in on_server.output
    assert not any(map(alive, pids.values()))
    assert PASSWORD not in on_server.output + on_server.errors
    assert spoiled.status == 1
    held = {title for title, ok in spoiled.verdicts().items() if ok}
    assert {"order", "return"} <= held
    assert not {"renewal", "surprises"} & held
    assert "failed, after" in spoiled.output


def demo(arguments: tuple[str, ...]) -> Run:
    command, pipe, began = [*COMMAND[:-3], "-c", UNHURRIED, *arguments], subprocess.PIPE, time.monotonic()
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, encoding="utf-8")
    output, errors = process.communicate(timeout=30 * SLACK)
    return Run(process.returncode, output, errors, time.monotonic() - began, process.pid)


def sabotage(redis: Redis) -> None:
    """Take the lock of the long job away from its holder, once it holds it and somebody waits."""
    give_up_at = time.monotonic() + 20 * SLACK
    while time.monotonic() < give_up_at:
        for queue in redis.scan_iter("*-long-job}:queue"):
            redis.delete(queue.removesuffix(b":queue"))
            return
        time.sleep(0.05)


def it_shows_every_property_in_plain_text(run: Run) -> None:
    assert (run.status, run.errors) == (0, ""), run.output
    assert run.verdicts() == dict.fromkeys(TITLES, True)
    assert_within(run.seconds, 20 * SLACK)
    assert max(map(len, run.output.splitlines())) <= 80
    assert "\x1b" not in run.output


@pytest.mark.redis
@pytest.mark.faults
def test_interrupt_from_a_terminal_ends_with_130_and_leaves_no_process(server: RedisServer) -> None:
    terminal = Terminal([*COMMAND, "--url", server.url], {**ENVIRONMENT, "TERM": "xterm-256color"}, columns=100)
    text = terminal.sees("(?s).*First come")
    time.sleep(0.5)
    terminal.press("\x03")
    status, rest = terminal.ends()
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text + rest)
    pids = pids_in(text)
    assert status == 130
    assert len(pids) == 7
    assert not any(map(alive, pids.values()))
    assert "aiolocks demo: interrupted" in text
    assert "Traceback" not in text


def pids_in(output: str) -> dict[str, int]:
    listed = output[output.index("processes:") : output.index("waits")]
    return {name: int(pid) for name, pid in re.findall(r"(\w+)=(\d+)", listed)}


def test_memory_without_its_extra_names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    assert main(["demo"]) == 2
    assert "needs the extra 'demo' of aiolocks" in capsys.readouterr().err
