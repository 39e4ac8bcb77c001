"""`aiolocks run NAME --again -- COMMAND…`: the command is started again whenever this host is elected."""

import signal
import time

import pytest

from aiolocks.cli import main
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Process, Start
from tests.surface.test_run import alive, result, said, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.rest]

WORKS = "echo $AIOLOCKS_FENCING_TOKEN $$; exec sleep 60"


def begun(process: Process) -> tuple[int, int]:
    term, pid = said(process).split()
    return int(term), int(pid)


@pytest.fixture
def hosts(start: Start) -> Start:
    return lambda command=WORKS: start("again", "--again", "--ttl", "3", "--", "sh", "-c", command)


@pytest.mark.smoke
def test_a_command_that_ends_by_itself_ends_it_with_its_status(hosts: Start) -> None:
    assert result(hosts("exit 7")) == (7, "", "")


@pytest.mark.faults
def test_after_a_loss_the_command_is_stopped_and_then_started_again(hosts: Start, server: RedisServer) -> None:
    process = hosts()
    terms: list[int] = []
    for _ in range(3):
        term, pid = begun(process)
        assert alive(pid)
        server.operator.delete("aiolocks:election:{again}")
        wait_until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
        terms.append(term)
    begun(process)
    assert terms == sorted(set(terms))
    process.send_signal(signal.SIGTERM)
    status, _, errors = result(process)
    assert status == 143
    assert errors.count("the command is stopped") == 3


def test_one_host_runs_it_and_the_next_one_takes_over_at_once(hosts: Start) -> None:
    first = hosts()
    term, pid = begun(first)
    second = hosts()
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        first.send_signal(number)
        later, its_pid = begun(second)
        assert later > term
        assert not alive(pid)
        assert result(first) == (status, "", "")
        first, second, term, pid = second, hosts(), later, its_pid


def test_a_signal_ends_one_that_stands_and_a_killed_host_is_replaced(hosts: Start, server: RedisServer) -> None:
    first = hosts()
    term, _ = begun(first)
    second, third = hosts(), hosts()
    wait_until(lambda: server.operator.zcard("aiolocks:election:{again}:queue") == 2)
    second.send_signal(signal.SIGTERM)
    assert result(second) == (143, "", "")
    first.kill()
    killed_at = time.monotonic()
    later, _ = begun(third)
    assert_within(time.monotonic() - killed_at, 3 + SLACK * 1)
    assert later > term


@pytest.mark.parametrize(("option", "why"), [
    (["--limit", "2"], "one host is elected"), (["--wait", "5"], "it stands until it is elected"),
    (["--max-waiting", "0"], "it stands until it is elected"), (["--busy-exit", "0"], "it stands until it is elected"),
    (["--min-hold", "5"], "it leads until the command ends"),
    (["--on-lost", "warn"], "the command is stopped before the next host is elected"),
])  # fmt: skip
def test_an_option_that_makes_no_sense_with_it_says_why(option: list[str], why: str, capsys: Capsys) -> None:
    named = " ".join(option) if "warn" in option else option[0]
    assert main(["run", "again", "--again", *option, "--", "true"]) == 2
    assert f"--again goes without {named}: {why}" in capsys.readouterr().err
