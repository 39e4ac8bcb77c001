"""A server that cannot be asked, or a wrong URL, is one line and status 2 for every command (`run`: 69)."""

import asyncio
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockManager
from aiolocks.cli import main
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Command

pytestmark = pytest.mark.rest

COMMANDS = [
    "ls", "show x", "release x", "resize x 3", "pause x 3", "resume x", "watch --once", "doctor", "bench --seconds 0.1",
    "demo",
]  # fmt: skip

RUN = "run x --wait 1 -- true"

NO_SERVER = "127.0.0.77"
"""An address of this host at which no program listens, not even at Redis's usual port."""


def ended(command: str, url: str, capsys: Capsys) -> tuple[int, str]:
    words, dashes, program = command.partition(" -- ")
    status = main([*words.split(), "--url", url, *(dashes + program).split()])
    said = capsys.readouterr()
    return status, said.out + said.err


def each_says(says: str, url: str, capsys: Capsys, *, away: bool = True) -> None:
    """Assert that each command ends with one line that has *says* in it; *away*: the URL is right."""
    found = list[str]()
    for command in [*COMMANDS, RUN]:
        status, said = ended(command, url, capsys)
        expected = 69 if command == RUN and away else 2
        if status != expected or says not in said or len(said.strip().splitlines()) != 1:
            found.append(f"{command}: {status}\n{said}")
        if "s3same" in said:
            found.append(f"{command}: shows the password\n{said}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
def test_a_server_that_is_away_is_one_line_and_status_2(scheme: str, capsys: Capsys) -> None:
    each_says(NO_SERVER, f"{scheme}://{NO_SERVER}{'/orders' if 'sentinel' in scheme else ''}", capsys)


@pytest.mark.smoke
@pytest.mark.parametrize("url", [
    "redis://user:s3same@{}?foo=1", "redis+cluster://user:s3same@{}?foo=1",
    "redis+sentinel://user:s3same@{}/orders?foo=1", "redis://user:s3same@{}:port", "redis://user:s3same@{}:99999",
    "redis://:s3same/@{}", "redis://:s3same@{}?s3same=1", "memory://:s3same@name", "https://user:s3same@{}", "unix://",
    "unix://?password=s3same",
])  # fmt: skip
def test_a_wrong_url_is_one_line_and_status_2(url: str, capsys: Capsys) -> None:
    says = "memory://" if url.startswith("memory") else "this --url "
    each_says(says, url.format(NO_SERVER), capsys, away=False)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel", "unix"])
def test_an_option_of_tls_in_a_url_without_tls_is_said_to_need_the_other_scheme(scheme: str, capsys: Capsys) -> None:
    place = {"unix": "/nowhere/redis.sock", "redis+sentinel": f"{NO_SERVER}/orders"}.get(scheme, NO_SERVER)
    url = f"{scheme}://{place}?password=s3same&ssl_ca_certs=/nowhere"
    each_says("this --url has options for TLS, which need rediss", url, capsys, away=False)


@pytest.mark.redis
@pytest.mark.parametrize("command", ["ls", RUN])
@pytest.mark.parametrize("scheme", ["rediss", "rediss+sentinel", "rediss+cluster"])
def test_the_error_of_a_url_with_tls_says_that_its_port_speaks_without(
    scheme: str, command: str, own_server: RedisServer, capsys: Capsys
) -> None:
    service = "/orders" if "sentinel" in scheme else ""
    other = f"{NO_SERVER}," if "+" in scheme else ""
    status, said = ended(command, f"{scheme}://{other}127.0.0.1:{own_server.port}{service}", capsys)
    assert (status, len(said.strip().splitlines())) == (69 if command == RUN else 2, 1), said
    assert f"this port speaks without TLS: {scheme.replace('rediss', 'redis')}://" in said


def test_a_cluster_that_refuses_the_password_is_one_line(servers: Callable[..., RedisServer], capsys: Capsys) -> None:
    node = servers(options={"requirepass": "right", "cluster-enabled": "yes"})
    each_says("password", f"redis+cluster://:s3same@127.0.0.1:{node.port}", capsys)


@pytest.mark.parametrize("answer", [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"*0\r\n"], ids=ascii)
@pytest.mark.parametrize("command", [*COMMANDS, RUN, "run x -- true"])
def test_a_server_that_is_no_redis_is_one_line(command: str, answer: bytes, capsys: Capsys) -> None:
    if command.startswith("run") and answer == b":1\r\n":
        pytest.skip("that is an answer to each of its questions")
    with stub(answer) as url:
        status, said = ended(command, url, capsys)
    assert (status, len(said.strip().splitlines())) == (69 if command.startswith("run") else 2, 1), said


@contextmanager
def stub(answer: bytes) -> Iterator[str]:
    """Run a server that gives the same answer to all that it is asked; yield its URL."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while asked := self.request.recv(65536):
                self.request.sendall(answer * max(asked.count(b"*"), 1))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"redis://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def outcome(arguments: str, redirections: str, url: str) -> int:
    line = f"{sys.executable} -m aiolocks {arguments} {redirections}"
    environment = {**os.environ, "AIOLOCKS_URL": url}
    return subprocess.run(["bash", "-c", line], env=environment, timeout=40, check=False).returncode


@pytest.mark.redis
@pytest.mark.parametrize(("arguments", "redirections", "status"), [
    *(("run y -- sh -c 'exit 3'", redirected, 3) for redirected in (">&-", "2>&-", "2>/dev/full", ">&- 2>&-")),
    *(("run x --wait 0 -- true", redirected, 75) for redirected in ("2>/dev/full", "2>&-")),
    ("ls --json", ">/dev/full 2>/dev/null", 2), ("ls", ">&-", 0),
])  # fmt: skip
async def test_a_command_ends_with_its_status_whatever_its_streams_are(
    redis: Redis, redis_url: str, arguments: str, redirections: str, status: int
) -> None:
    async with Lock(redis, "x"):
        assert await asyncio.to_thread(outcome, arguments, redirections, redis_url) == status


@pytest.mark.redis
async def test_a_name_that_the_terminal_cannot_show_is_escaped(redis: Redis, redis_url: str) -> None:
    async with Lock(redis, "na\u00efve-\u65e5"):
        for arguments in ("ls", "show na\u00efve-\u65e5", "watch --once"):
            line = f"PYTHONIOENCODING=ascii {sys.executable} -m aiolocks {arguments} --url {redis_url}"
            done = await asyncio.to_thread(subprocess.run, ["bash", "-c", line], capture_output=True, check=False)
            assert (done.returncode, b"na\\xefve-\\u65e5" in done.stdout) == (0, True), done.stderr


@pytest.mark.smoke
@pytest.mark.redis
@pytest.mark.leaves_residue
async def test_a_lease_without_end_is_null_in_json(locks: LockManager, command: Command) -> None:
    await locks.client.zadd("aiolocks:semaphore:{inf}", {"t" * 33: float("inf")})
    printed = (await command("ls", "--json")).out
    (listed,) = json.loads(printed, parse_constant=lambda name: pytest.fail(name))
    assert listed["remaining"] is None


@pytest.mark.smoke
def test_an_empty_url_is_not_the_default_and_memory_has_nothing_to_list(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts with a Redis of their own at the default would not exclude each other."""
    assert main(["ls", "--url", ""]) == 2
    assert "is not valid" in capsys.readouterr().err
    monkeypatch.setenv("AIOLOCKS_URL", "")
    for command in (*COMMANDS[:-1], RUN):
        assert main(command.split()) == 2
        says = "AIOLOCKS_URL is empty; set it to the URL of your Redis, or unset it for redis://localhost\n"
        assert capsys.readouterr() == ("", f"aiolocks {command.split()[0]}: {says}")
    for command in ("ls", "show x"):
        status, said = ended(command, "memory://", capsys)
        assert (status, said.count("\n")) == (2, 1)


@pytest.mark.redis
def test_run_sees_the_end_of_its_command_though_its_parent_has_blocked_the_signal(redis_url: str) -> None:
    program = [sys.executable, "-m", "aiolocks", "run", "x", "--url", redis_url, "--", "sh", "-c", "exit 3"]
    blocking = partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGCHLD})
    done = subprocess.run(program, preexec_fn=blocking, timeout=30, check=False)
    assert done.returncode == 3
