"""Over TLS a server is believed only with a certificate that is right, on every connection: or nothing is held."""

import asyncio
import datetime
import gc
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import LeaseLostError, Lock, LockManager
from aiolocks.cli import main
from tests.support.cases import the_rest_slow
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.leftovers import is_residue
from tests.support.primitives import ROWS, Row, queued
from tests.support.servers import RedisServer
from tests.support.tls import TlsServer

pytestmark = [pytest.mark.redis, pytest.mark.rest]

Capsys = pytest.CaptureFixture[str]
UNREACHABLE = (RedisConnectionError, RedisTimeoutError)
"""The latter where the caller's patience ends before the handshake does."""

YESTERDAY = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)

WRONG: dict[str, Callable[[TlsServer], str]] = {
    "another authority": lambda tls: tls.url(trusts=trustme.CA()),
    "another host": lambda tls: tls.url(host="127.0.0.1"),
    "no authority": lambda tls: f"rediss://localhost:{tls.port}",
    "no TLS": lambda tls: f"redis://localhost:{tls.port}",
}


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsServer]:
    running = TlsServer(tmp_path)
    yield running
    running.server.stop()


def connect(url: str) -> Redis:
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0))


def keys(tls: TlsServer) -> list[bytes]:
    return [key for key in tls.server.operator.scan_iter() if not is_residue(key)]


@pytest.mark.parametrize("row", the_rest_slow([row for row in ROWS if row.queue], quick=2), ids=str)
async def test_with_verification_leases_are_renewed_and_waiters_are_told(
    tls: TlsServer, quick_sessions: None, caplog: pytest.LogCaptureFixture, row: Row
) -> None:
    """The one connection that all tasks share, and the one for wake-ups: the server has no other port."""
    async with connect(tls.url()) as one, connect(tls.url()) as other, measured_lag() as lag:
        mine, theirs = row.make(one, "orders", ttl=2), row.make(other, "orders", ttl=2)
        leases = [await mine.acquire() for _ in range(row.places)]
        waiting = [asyncio.ensure_future(theirs.acquire()) for _ in range(50)]
        await queued(mine, 50)
        await asyncio.sleep(2.5)  # longer than the TTL
        for lease in leases:
            lease.check()
        released_at = time.monotonic()
        for lease in leases:
            await lease.release()
        for waiter in waiting:
            await (await waiter).release()
        took = time.monotonic() - released_at
    print(f"50 hand-overs in {took:.3f} s")
    assert_within(took, 0.25 + SLACK * 0.25 + lag.worst, "none waited for its re-check")
    assert caplog.records == []


@pytest.mark.parametrize("wrong", the_rest_slow(WRONG, quick=1))
async def test_without_a_right_certificate_nothing_is_granted(tls: TlsServer, quick_sessions: None, wrong: str) -> None:
    async with connect(WRONG[wrong](tls)) as client:
        for row in [row for row in ROWS if row.queue]:
            acquirable = row.make(client, "orders", ttl=1)
            with pytest.raises(UNREACHABLE):
                await acquirable.try_acquire()
            with pytest.raises(UNREACHABLE):
                async with acquirable.hold(timeout=0.3):
                    pytest.fail("the body began")
            with pytest.raises(UNREACHABLE):
                await acquirable.locked()
    assert keys(tls) == []


async def test_a_certificate_that_has_expired_grants_nothing(tls: TlsServer, quick_sessions: None) -> None:
    tls.present(tls.authority, not_before=YESTERDAY - datetime.timedelta(days=1), not_after=YESTERDAY)
    tls.server.restart()
    async with connect(tls.url()) as client:
        with pytest.raises(RedisConnectionError, match="certificate has expired"):
            await Lock(client, "orders").try_acquire()
    assert keys(tls) == []


@pytest.mark.faults
async def test_a_server_that_becomes_another_one_is_not_believed_any_more(tls: TlsServer, quick_sessions: None) -> None:
    """Somebody else answers at the address: the lease ends at its deadline, and a waiter is never granted by it."""
    async with connect(tls.url()) as client:
        async with measured_lag() as lag:
            with pytest.raises(LeaseLostError):
                async with Lock(client, "orders", ttl=0.8):
                    began = time.monotonic()  # after its request has left
                    waiting = asyncio.ensure_future(Lock(client, "orders", ttl=0.8).acquire())
                    tls.present(trustme.CA())
                    tls.server.restart()
                    await asyncio.sleep(30)
            ended = time.monotonic()
        assert ended - lag.worst < began + 0.8
        with pytest.raises(UNREACHABLE):
            await waiting
    assert keys(tls) == []


@pytest.mark.smoke
async def test_a_rediss_url_verifies_by_itself(tls: TlsServer, quick_sessions: None) -> None:
    async with LockManager.from_url(tls.url()) as locks, locks.lock("orders") as lease:
        assert lease.held
    async with LockManager.from_url(f"rediss://localhost:{tls.port}") as locks:
        with pytest.raises(UNREACHABLE):
            await locks.lock("orders").acquire(timeout=0.3)


def test_commands_go_by_tls_and_say_what_is_in_the_way(tls: TlsServer, server: RedisServer, capsys: Capsys) -> None:
    assert main(["doctor", "--url", tls.url()]) == 0
    assert f"localhost:{tls.port}" in capsys.readouterr().out
    for wrong in WRONG.values():
        assert main(["doctor", "--url", wrong(tls)]) == 2
    assert "certificate" in capsys.readouterr().err
    assert keys(tls) == []
    for url, says in (
        (f"redis://:s3same@localhost:{tls.port}", "this port speaks TLS: rediss://"),
        (f"rediss://:s3same@localhost:{server.port}", "this port speaks without TLS: redis://"),
        (f"rediss://:s3same@localhost:{tls.port}", "?ssl_ca_certs=FILE"),
    ):
        for command, status in ((("doctor",), 2), (("ls",), 2), (("run", "x", "--wait", "1", "--", "true"), 69)):
            words, program = command[:4], command[4:]
            assert main([*words, "--url", url, *program]) == status
            captured = capsys.readouterr()
            assert (captured.out, says in captured.err, "s3same" in captured.err) == ("", True, False), command


def test_doctor_does_not_wait_for_the_goodbye_of_a_server(capsys: Capsys) -> None:
    """TLS ends a connection by a message each way. A client that waits for the server's would outlive its loop."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)

    def answer_by_tls_alone(listener: socket.socket) -> ssl.SSLSocket:
        listener.accept()[0].close()
        tls = context.wrap_socket(listener.accept()[0], server_side=True)
        tls.recv(1024)
        tls.send(b"-NOAUTH Authentication required.\r\n")
        return tls

    with socket.create_server(("localhost", 0)) as listener, ThreadPoolExecutor() as thread:
        answering = thread.submit(answer_by_tls_alone, listener)
        assert main(["doctor", "--url", f"redis://localhost:{listener.getsockname()[1]}"]) == 2
        assert "this port speaks TLS" in capsys.readouterr().err
        gc.collect()  # whatever it finds unclosed is reported, and fails the test
        answering.result().close()
