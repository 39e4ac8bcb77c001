"""`aiolocks run NAME -- COMMAND…`: exit statuses, signals, what the command finds, and what becomes of it."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aiolocks.cli import main
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Process, Start, running

pytestmark = [pytest.mark.redis, pytest.mark.rest]

WITHIN = 10 * SLACK


def said(process: Process) -> str:
    """Wait for the line that a command prints when it has begun."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def result(process: Process) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=WITHIN)
    return process.returncode, output, errors


def lose(server: RedisServer, name: str) -> None:
    server.operator.delete(f"aiolocks:lock:{{{name}}}")


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and has no parent to ask for its status may be there for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while this reads
        return False


def wait_until(condition: Callable[[], object], within: float = WITHIN) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + within
        time.sleep(0.005)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("command", "status"),
    [("true", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("exit 255", 255)],
)
def test_the_exit_status_is_the_command_s_own(start: Start, command: str, status: int) -> None:
    assert result(start("status", "--", "sh", "-c", command)) == (status, "", "")


def test_options_behind_the_dashes_are_the_command_s(start: Start) -> None:
    assert result(start("options", "--ttl", "5", "--", "echo", "--wait", "--", "-x"))[1] == "--wait -- -x\n"


@pytest.mark.smoke
def test_the_command_finds_the_name_and_a_fencing_token_that_grows(start: Start) -> None:
    tokens = []
    for _ in range(2):
        process = start("it's {odd}", "--", "sh", "-c", 'echo "$AIOLOCKS_FENCING_TOKEN $AIOLOCKS_NAME"')
        _, output, errors = result(process)
        token, name = output.strip().split(" ", 1)
        assert (name, errors) == ("it's {odd}", "")
        tokens.append(int(token))
    assert tokens[0] < tokens[1]


def test_one_runs_at_a_time_and_the_next_follows(start: Start, tmp_path: Path) -> None:
    """However long it takes: the lease is renewed."""
    end = tmp_path / "end"
    first = start("turns", "--ttl", "2", "--", "sh", "-c", f"echo begun; until test -e {end}; do sleep 0.02; done")
    assert said(first) == "begun"
    status, output, errors = result(start("turns", "--wait", "3", "--", "echo", "never"))
    assert (status, output) == (75, "")
    assert "'turns' is held by another caller" in errors
    assert result(start("turns", "--wait", "0.5", "--busy-exit", "0", "--", "echo", "never")) == (0, "", "")
    assert result(start("turns", "--wait", "0", "--busy-exit", "9", "--", "echo", "never"))[0] == 9
    following = start("turns", "--", "echo", "next")
    end.touch()
    assert result(following) == (0, "next\n", "")
    assert result(first) == (0, "", "")


def test_with_a_limit_so_many_run_at_once(start: Start) -> None:
    holders = [start("crowd", "--limit", "2", "--", "sh", "-c", "echo begun; sleep 60") for _ in range(2)]
    assert [said(holder) for holder in holders] == ["begun"] * 2
    assert result(start("crowd", "--limit", "2", "--wait", "0", "--", "true"))[0] == 75
    status, output, errors = result(start("crowd", "--limit", "2", "--max-waiting", "0", "--", "echo", "never"))
    assert (status, output) == (75, "")
    assert errors == "aiolocks run: 'crowd' is held by another caller: its queue has no room\n"
    assert result(start("crowd", "--limit", "2", "--max-waiting", "0", "--busy-exit", "9", "--", "true"))[0] == 9
    assert result(start("crowd", "--wait", "0", "--", "true"))[0] == 0  # a lock of that name is another thing


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--limit", "1")], ids=["lock", "semaphore"])
def test_with_min_hold_the_next_waits_for_what_is_missing(start: Start, more: tuple[str, ...]) -> None:
    print_time = "date +%s%N"
    first = start("held", "--min-hold", "5", *more, "--", "sh", "-c", print_time)
    began = int(said(first))
    assert result(first) == (0, "", "")
    assert result(start("held", "--wait", "0", *more, "--", "true"))[0] == 75
    status, output, _ = result(start("held", *more, "--", "sh", "-c", print_time))
    assert status == 0
    assert int(output) - began > 4e9  # from the grant on, which came before the command began


@pytest.mark.parametrize(("command", "status", "says"), [
    (["no-such-program"], 127, "not found"), (["./backup.sh && date"], 127, "write -- sh -c 'LINE'"),
    ([os.devnull], 126, "cannot be executed"), ([], 2, "the command is missing"),
])  # fmt: skip
def test_a_command_that_cannot_run_is_told_at_once(command: list[str], status: int, says: str, capsys: Capsys) -> None:
    assert main(["run", "nothing", "--url", "redis://127.0.0.1:1", "--", *command]) == status
    assert says in capsys.readouterr().err


def test_a_command_without_its_interpreter_or_format_leaves_nothing_held(start: Start, tmp_path: Path) -> None:
    for text, status in (("#!/no/such/interpreter\n", 127), ("\x7fELF", 126)):
        program = tmp_path / "program"
        program.write_text(text)
        program.chmod(0o755)
        assert result(start("broken", "--wait", "0", "--", str(program)))[0] == status


@pytest.mark.parametrize(("arguments", "says"), [
    (["nightly", "./backup.sh", "-v"], "unrecognized arguments: ./backup.sh -v; write -- before the command\n"),
    (["nightly", "-w", "5", "--", "true"], "unrecognized arguments: -w 5; use --wait\n"),
    (["nightly", "--timeout=5", "--", "true"], "unrecognized arguments: --timeout=5; use --wait\n"),
    (["-n", "nightly", "--", "true"], "unrecognized arguments: -n; use --wait 0\n"),
    (["nightly", "--colour", "--", "true"], "unrecognized arguments: --colour\n"),
])  # fmt: skip
def test_an_unknown_argument_is_told_with_what_was_meant(arguments: list[str], says: str, capsys: Capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", *arguments])
    printed = capsys.readouterr().err
    assert printed.startswith("usage: aiolocks run NAME [options] -- COMMAND")
    assert printed.endswith(f"aiolocks run: error: {says}")


REPORTING = """
trap 'echo TERM; exit 3' TERM; trap 'echo INT; exit 4' INT; trap 'echo HUP; exit 5' HUP
for name in USR1 USR2 WINCH; do trap "echo $name" $name; done
echo begun
while :; do sleep 0.02; done
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 3), (signal.SIGINT, 4), (signal.SIGHUP, 5)])
def test_signals_are_passed_on_to_the_command(start: Start, number: signal.Signals, status: int) -> None:
    process = start("signals", "--", "sh", "-c", REPORTING)
    assert said(process) == "begun"
    for harmless in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
        process.send_signal(harmless)
        assert said(process) == harmless.name.removeprefix("SIG")
    process.send_signal(number)
    assert result(process)[:2] == (status, f"{number.name.removeprefix('SIG')}\n")


def test_a_signal_for_the_group_reaches_what_the_command_has_started(start: Start) -> None:
    process = start("group", "--", "sh", "-c", "sleep 60 & echo $!; wait")
    grandchild = int(said(process))
    process.terminate()
    assert result(process)[0] == 143
    wait_until(lambda: not alive(grandchild))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_waiter_and_frees_its_place(start: Start, server: RedisServer, number: signal.Signals) -> None:
    holder = start("waits", "--", "sh", "-c", "echo begun; sleep 60")
    assert said(holder) == "begun"
    waiting = start("waits", "--", "echo", "never")
    wait_until(lambda: bool(server.operator.zcard("aiolocks:lock:{waits}:queue")))
    waiting.send_signal(number)
    assert result(waiting) == (128 + number, "", "")
    assert not server.operator.zcard("aiolocks:lock:{waits}:queue")


def test_a_signal_that_was_ignored_when_it_began_as_by_nohup_stays_ignored(server: RedisServer) -> None:
    command = ("nohup", "--", "sh", "-c", "echo begun; sleep 0.5; echo end")
    with running(server.tcp_url, *command, before='trap "" HUP; ') as process:
        assert said(process) == "begun"
        os.killpg(process.pid, signal.SIGHUP)
        assert result(process)[:2] == (0, "end\n")


@pytest.mark.faults
def test_when_it_is_killed_so_are_the_command_and_what_that_has_started(start: Start) -> None:
    process = start("killed", "--ttl", "1", "--", "sh", "-c", "sleep 60 & echo $$ $!; wait")
    pids = [int(pid) for pid in said(process).split()]
    assert all(map(alive, pids))
    process.kill()
    assert_within(wait_until(lambda: not any(map(alive, pids))), SLACK * 0.2)
    assert result(start("killed", "--wait", "10", "--", "true"))[0] == 0


STUBBORN = "trap 'echo asked' TERM; sleep 60 & echo $$ $!; while :; do wait; done"


@pytest.mark.faults
def test_a_lost_lease_stops_all_of_the_command_s_group(start: Start, server: RedisServer) -> None:
    process = start("lost", "--ttl", "1", "--", "sh", "-c", STUBBORN)
    pids = [int(pid) for pid in said(process).split()]
    lose(server, "lost")
    status, output, errors = result(process)
    assert (status, output) == (74, "asked\n")
    assert re.fullmatch(r"aiolocks run: 'lost': it is gone from the server: .*; the command is stopped\n", errors)
    assert not any(map(alive, pids))


@pytest.mark.faults
def test_the_command_is_told_at_the_deadline_and_killed_before_anyone_else_can_hold(own_server: RedisServer) -> None:
    """The server stands still, so that nothing is renewed; the lease is over one TTL after the last request left."""
    with running(own_server.tcp_url, "deadline", "--ttl", "2", "--", "sh", "-c", STUBBORN) as process:
        pids = [int(pid) for pid in said(process).split()]
        own_server.pause()
        stopped_at = time.monotonic()
        status, output, errors = result(process)
        took = time.monotonic() - stopped_at
        own_server.resume()
    assert (status, output) == (74, "asked\n")
    assert "not renewed within its 2 s TTL" in errors
    assert_within(took, 2.0 * SLACK)
    assert not any(map(alive, pids))


@pytest.mark.smoke
def test_with_warn_a_lost_lease_is_told_and_the_command_goes_on(start: Start, server: RedisServer) -> None:
    process = start("warned", "--ttl", "0.5", "--on-lost", "warn", "--", "sh", "-c", "echo begun; sleep 1; exit 6")
    assert said(process) == "begun"
    lose(server, "warned")
    status, _, errors = result(process)
    assert status == 6
    assert "'warned': it is gone from the server" in errors
    assert "the command goes on" in errors


def test_an_unnoticed_loss_is_no_success(start: Start, server: RedisServer) -> None:
    """As leaving a block says LeaseLostError though its body has ended: what was done may have to be done again."""
    process = start("unnoticed", "--", "sh", "-c", "echo begun; sleep 0.3")
    assert said(process) == "begun"
    lose(server, "unnoticed")
    status, _, errors = result(process)
    assert status == 74
    assert "the lease was lost before the command had ended" in errors
