"""`aiolocks doctor` on servers that are set up badly on purpose: what it says, and its exit status."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from aiolocks.cli import main
from tests.faults.support.server_clock import ServerClock
from tests.support.clients import OPERATING
from tests.support.leftovers import is_residue
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys

pytestmark = [pytest.mark.redis, pytest.mark.rest]

PASSWORD = "sesame"
FIT = {"appendonly": "yes", "appendfsync": "always"}
ALWAYS = {"server", "replication", "eviction", "persistence", "clock", "latency", "rights", "wake-ups", "hand-over"}
Servers = Callable[..., RedisServer]
Ask = Callable[..., "Report"]


@dataclass(frozen=True)
class Report:
    status: int
    checks: Mapping[str, Mapping[str, Any]]

    def verdict(self, check: str) -> str:
        return str(self.checks[check]["verdict"])

    def text(self, check: str) -> str:
        return f"{self.checks[check]['found']}\n{self.checks[check]['advice']}"

    def not_ok(self) -> dict[str, str]:
        return {name: check["verdict"] for name, check in self.checks.items() if check["verdict"] != "ok"}


@pytest.fixture
def ask(capsys: Capsys) -> Ask:
    def ask(url: str, *arguments: str) -> Report:
        status = main(["doctor", "--json", "--url", url, *arguments])
        captured = capsys.readouterr()
        assert (captured.err, PASSWORD in captured.out) == ("", False)
        printed = json.loads(captured.out)
        assert printed["status"] == status
        return Report(status, {check["check"]: check for check in printed["checks"]})

    return ask


def user(server: RedisServer, *rights: str) -> str:
    operator: Any = server.operator
    known = ("reset", "on", f">{PASSWORD}", "~aiolocks:*", "resetchannels", "&aiolocks:*")
    operator.execute_command("ACL", "SETUSER", "app", *known, *rights)
    return f"redis://app:{PASSWORD}@127.0.0.1:{server.port}"


def replicated(primary: RedisServer, servers: Servers, **options: Any) -> RedisServer:
    """Start a replica, and return it once it is online and tells how far it is."""
    replica = servers(options={"replicaof": f"127.0.0.1 {primary.port}"}, **options)
    give_up_at = time.monotonic() + 20
    while "lag" not in (slave := primary.operator.info("replication").get("slave0", {})) or slave["state"] != "online":
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return replica


def keys(server: RedisServer) -> list[bytes]:
    return [key for key in server.operator.scan_iter() if not is_residue(key)]


def test_a_fit_server_gets_ok_everywhere_and_keeps_nothing(servers: Servers, ask: Ask, capsys: Capsys) -> None:
    server = servers(options=FIT)
    for url in (server.url, server.tcp_url):
        report = ask(url, "--strict")
        assert (report.status, report.not_ok(), set(report.checks)) == (0, {}, ALWAYS)
    assert main(["doctor", "--url", server.url]) == 0
    assert capsys.readouterr().out.endswith("\n\nFit for locks.\n")
    with closing(Redis.from_url(server.url)) as admin:
        assert admin.info("clients")["connected_clients"] == 1
    assert keys(server) == []


@pytest.mark.parametrize(("options", "check", "verdict"), [
    ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "eviction", "danger"),
    ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "eviction", "danger"),
    ({"maxmemory-policy": "allkeys-lru"}, "eviction", "warning"), ({"maxmemory": "100mb"}, "eviction", "ok"),
    ({"min-replicas-to-write": "1"}, "replication", "danger"), ({"appendonly": "no"}, "persistence", "warning"),
    ({"appendonly": "no", "save": "3600 1"}, "persistence", "warning"),
    ({"appendfsync": "everysec"}, "persistence", "warning"),
])  # fmt: skip
def test_a_setting_that_endangers_locks_is_named_with_what_to_do(
    servers: Servers, ask: Ask, options: dict[str, str], check: str, verdict: str
) -> None:
    url = servers(options=FIT | options).url
    report = ask(url)
    assert report.verdict(check) == verdict
    assert report.checks[check]["advice"] or verdict == "ok"
    assert report.status == (1 if verdict == "danger" else 0)
    assert ask(url, "--strict").status == (0 if verdict == "ok" else 1)
    assert set(report.not_ok()) <= {check, "hand-over"}


@pytest.mark.slow
def test_replicas_are_judged_by_whether_a_lone_primary_goes_on(servers: Servers, ask: Ask) -> None:
    primary = servers(options=FIT | {"repl-diskless-sync-delay": "0"})
    replica = replicated(primary, servers)
    report = ask(primary.url)
    assert report.not_ok() == {"replication": "warning"}
    assert report.verdict("replica clocks") == "ok"
    assert "min-replicas-to-write 1" in report.text("replication")
    primary.operator.config_set("min-replicas-to-write", 1)
    report = ask(primary.url)
    assert report.not_ok() == {}
    assert "fencing" in report.text("replication")
    report = ask(replica.url)
    assert (report.status, report.verdict("replication")) == (1, "danger")
    assert f"127.0.0.1:{primary.port}" in report.text("replication")
    assert "read only replica" in report.text("hand-over")
    assert keys(replica) == []


@pytest.mark.slow
def test_a_replica_whose_clock_is_off_or_that_is_silent_is_named(servers: Servers, ask: Ask, tmp_path: Path) -> None:
    clock = ServerClock(tmp_path)
    primary = servers(options=FIT | {"repl-diskless-sync-delay": "0"})
    replica = replicated(primary, servers, environment=clock.environment)
    assert ask(primary.url).verdict("replica clocks") == "ok"
    clock.step(20)
    report = ask(primary.url)
    assert report.verdict("replica clocks") == "warning"
    assert f"127.0.0.1:{replica.port} is 20 s off" in report.text("replica clocks")
    clock.close()
    replica.pause()
    report = ask(primary.url)
    assert report.verdict("replica clocks") == "unknown"
    assert f"127.0.0.1:{replica.port}" in report.text("replica clocks")


UNTRIED = {"hand-over": "unknown"}
NOT_ASKED = dict.fromkeys(("server", "replication", "eviction", "persistence"), "unknown")


@pytest.mark.smoke
@pytest.mark.parametrize(("rights", "not_ok", "check", "says"), [
    ("resetchannels", UNTRIED | {"wake-ups": "warning"}, "wake-ups", r"ACL SETUSER USER &aiolocks:\*"),
    ("-publish", UNTRIED | {"wake-ups": "warning"}, "wake-ups", r"ACL SETUSER USER \+publish"),
    ("-evalsha", UNTRIED | {"rights": "danger"}, "rights", r"ACL SETUSER USER \+evalsha"),
    ("-set -pexpire -del -zadd -hset", UNTRIED | {"rights": "danger"}, "rights", r"USER \+set \+pexpire"),
    ("-set -hset -zrem", UNTRIED | {"rights": "danger"}, "rights", r"USER \+set \+hset \+zrem"),
    ("resetkeys ~other:*", UNTRIED | {"rights": "danger"}, "rights", r"ACL SETUSER USER ~aiolocks:\*"),
    ("resetkeys ~aiolocks:lock:*", {"hand-over": "danger"}, "hand-over", "access .*key"),  # in the server's words
    ("-config -info", NOT_ASKED, "persistence", ""),
    ("-config", {"persistence": "unknown"}, "persistence", r"\+config\|get"),
    ("-time", UNTRIED | {"clock": "unknown", "latency": "unknown", "rights": "danger"}, "rights", r"\+time"),
])  # fmt: skip
def test_rights_that_are_missing_are_named_and_what_a_user_may_not_ask_is_unknown(
    servers: Servers, ask: Ask, rights: str, not_ok: dict[str, str], check: str, says: str
) -> None:
    server = servers(options=FIT)
    report = ask(user(server, "+@all", *rights.split()))
    assert (report.status, report.not_ok()) == ("danger" in not_ok.values(), not_ok)
    assert re.search(says, report.text(check))
    assert keys(server) == []


def test_the_prefix_is_the_one_that_is_asked_for(servers: Servers, ask: Ask) -> None:
    url = user(servers(options=FIT), "+@all")
    assert ask(url, "--prefix", "aiolocks:shop:").not_ok() == {}
    other = ask(url, "--prefix", "shop:")
    assert "~shop:*" in other.text("rights")
    assert "&shop:*" in other.text("wake-ups")


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [(("--sentinel",), {}, "Sentinel"), ((), {"cluster-enabled": "yes"}, "Cluster")],
    ids=["sentinel", "cluster"],
)
def test_a_server_of_another_kind_is_a_plain_danger(
    servers: Servers, ask: Ask, arguments: tuple[str, ...], options: dict[str, str], says: str
) -> None:
    report = ask(servers(arguments=arguments, options=options).url)
    assert (report.status, report.not_ok()) == (1, {"server": "danger"})
    assert says in report.text("server")


@pytest.mark.smoke
def test_memory_has_nothing_to_examine_but_itself(ask: Ask) -> None:
    report = ask("memory://")
    assert (report.status, report.not_ok(), set(report.checks)) == (0, {}, {"server", "hand-over"})
    assert "one process" in report.text("server")


def test_the_documented_command_is_plain_text_of_80_columns_without_warnings(server: RedisServer) -> None:
    block = OPERATING.read_text(encoding="utf-8").split("<!-- doctor-command -->\n```sh\n")[1].split("```")[0]
    command = block.strip().replace("redis://localhost", server.url).split()
    assert command[0] == ".venv/bin/aiolocks"
    program = [sys.executable, "-W", "error", "-m", "aiolocks", *command[1:]]
    done = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert set(re.findall(r"^   (?:ok|warning|danger|unknown) +(\S+)", done.stdout, re.M)) == ALWAYS
