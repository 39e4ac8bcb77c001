"""No token, password or URL with credentials in a log line, a warning, an error, a note or a repr (P14)."""

import asyncio
import contextlib
import gc
import io
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
import redis as synchronous
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, LimitMismatchError, Lock, LockManager, Semaphore
from aiolocks._core.keys import Keys
from aiolocks.cli import main
from aiolocks.testing import FaultProxy
from tests.support.cases import the_rest_slow
from tests.support.lateness import kept
from tests.support.network import until
from tests.support.primitives import ROWS, SOON, Acquirable, Row, as_a_stranger, queued
from tests.support.secrets import PASSWORD, Ear, listening
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.rest]

USUAL = [row for row in ROWS if row.queue]
WITH_A_QUEUE = [row for row in USUAL if row.places == 1 and not row.composed]

every_row = pytest.mark.parametrize("row", the_rest_slow(WITH_A_QUEUE, quick=1), ids=str)


@dataclass(frozen=True)
class Scene:
    """A server with a password, behind a proxy, and an ear that listens."""

    server: RedisServer
    proxy: FaultProxy
    ear: Ear

    def url(self, password: str = PASSWORD, user: str = "") -> str:
        return f"redis://{user}:{quote(password, safe='')}@127.0.0.1:{self.proxy.port}"

    def client(self, url: str | None = None, **options: Any) -> Redis:
        return Redis.from_url(url or self.url(), retry=Retry(NoBackoff(), 0), **options)

    def admin(self, *command: Any) -> None:
        admin: Any
        with closing(synchronous.Redis(unix_socket_path=self.server.socket_path, password=PASSWORD)) as admin:
            admin.execute_command(*command)


@pytest_asyncio.fixture
async def scene(servers: Callable[..., RedisServer], quick_sessions: None) -> AsyncIterator[Scene]:
    server = servers(options={"requirepass": f'"{PASSWORD}"'})
    with listening() as ear:
        async with FaultProxy(path=server.socket_path) as proxy:
            proxy.on_request = ear.note_request
            scene = Scene(server, proxy, ear)
            async with scene.client() as client:
                await use(scene, client, USUAL[:1])
            yield scene
        gc.collect()


async def test_when_all_goes_well(scene: Scene) -> None:
    async with scene.client() as client:
        await use(scene, client, USUAL[1:])


async def use(scene: Scene, client: Redis, rows: Sequence[Row]) -> None:
    """Take each in good order, so that there are tokens to keep; look at it from all sides."""
    locks = LockManager(client, ttl=5)
    leases: list[Lease] = []
    for row in rows:
        acquirable = row.make(client, f"seen {row}", ttl=5)
        async with acquirable as lease:
            leases = [lease, *[await acquirable.acquire() for _ in range(row.places - 1)]]
            waiting = as_a_stranger(acquirable.acquire())
            await queued(acquirable, 1)
            scene.ear.look_around()
            scene.ear.say("object", locks, acquirable, *leases, acquirable.hold(), await acquirable.statistics())
            await look_from_outside(scene, row, acquirable)
            for extra in leases[1:]:
                await extra.release()
        scene.ear.say("object", *leases, waiting, await waiting)
        await (await waiting).release()
    scene.ear.tokens |= {leases[0].token}


async def look_from_outside(scene: Scene, row: Row, acquirable: Any) -> None:
    """Hear who holds it and who waits, as the library and the command line tell it."""
    scene.ear.say("who", *await acquirable.holders(), *await acquirable.waiters())
    commands = (["ls"], ["show", f"seen {row}"], ["release", f"seen {row}", "--dry-run"])
    for words in (*commands, *([*words, "--json"] for words in commands)):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            await asyncio.to_thread(main, [*words, "--url", scene.url()])
        assert said.getvalue()
        scene.ear.say(words[0], said.getvalue())


async def test_when_a_command_runs_under_a_lock_or_its_holder_is_made_to_stop(scene: Scene) -> None:
    async with scene.client() as client:
        lease = await Lock(client, "nightly", ttl=5).acquire()
        scene.ear.tokens |= {lease.token}
        await command_line(scene, "run", "nightly", "--wait", "0", "--", "true")
        await command_line(scene, "watch", "--once")
        await command_line(scene, "release", "nightly", "--force")
        await command_line(scene, "run", "nightly", "--", "sh", "-c", "echo $AIOLOCKS_NAME $AIOLOCKS_FENCING_TOKEN")
        await lease.release()
    await command_line(scene, "run", "nightly", "--", "true", url=scene.url("wr0ng"))


async def command_line(scene: Scene, *words: str, url: str = "") -> None:
    environment = {**os.environ, "AIOLOCKS_URL": url or scene.url()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aiolocks", *words, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    scene.ear.say(words[0], said.decode())


async def test_when_it_is_revoked(scene: Scene) -> None:
    async with scene.client() as client:
        for row in ROWS:
            if row.queue:
                acquirable: Any = row.make(client, f"revoked {row}", ttl=5)
                lease = await acquirable.acquire()
                with scene.ear.raises(AcquireTimeoutError):
                    await acquirable.revoke(timeout=0)
                assert not await lease.renew()
                after_a_loss(scene, lease)
                scene.ear.say("revoked", *await acquirable.revoke(force=True, timeout=5))
                await lease.release()


@pytest.mark.smoke
@every_row
async def test_when_the_password_is_wrong_or_the_connection_is_refused(scene: Scene, row: Row) -> None:
    async def refused(url: str, *errors: type[Exception]) -> None:
        async with scene.client(url) as client:
            await all_refused(scene, row.make(client, "orders"), *errors)

    wrong = "wr0ng/ünd so"
    scene.ear.secrets.add("wr0ng")
    for url in (scene.url(wrong), scene.url(wrong, "somebody"), f"redis://127.0.0.1:{scene.proxy.port}"):
        # Without a handshake, Redis says only that it does not read so much from a stranger.
        await refused(url, AuthenticationError, ResponseError)
    scene.proxy.refuse = True
    for url in (scene.url(), f"unix:///nowhere?password={quote(PASSWORD, safe='')}"):
        await refused(url, RedisConnectionError)


async def all_refused(scene: Scene, acquirable: Any, *errors: type[Exception]) -> None:
    for ask in (acquirable.acquire, acquirable.try_acquire, acquirable.locked, acquirable.statistics):
        with scene.ear.raises(*errors):
            await ask()
    with scene.ear.raises(*errors, RedisTimeoutError):  # a busy machine may not know in time
        async with acquirable.hold(timeout=0.2):
            pass


@every_row
async def test_when_rights_are_missing(scene: Scene, row: Row) -> None:
    async def try_without(lacks: str) -> None:
        rest = {"&": ["+@all", "resetchannels"], "~": ["+@all", "resetkeys"]}.get(lacks, ["+@all", lacks])
        scene.admin("ACL", "SETUSER", f"u{lacks}", "reset", "on", f">{PASSWORD}", "~*", "&*", *rest)
        trouble: list[BaseException] = []
        async with scene.client(scene.url(user=f"u{lacks}")) as client:
            for ask in (hold_and_wait, release_by_hand):
                try:
                    await ask(row.make(client, f"orders{lacks}", ttl=1))
                except ResponseError as error:
                    trouble.append(error)
                    scene.ear.listen_to(error)
        assert bool(trouble) == (lacks != "&"), lacks

    async with kept(1):
        await asyncio.gather(*map(try_without, ("-eval", "-evalsha", "-time", "-exists", "&", "~")))


async def hold_and_wait(acquirable: Acquirable) -> None:
    async with acquirable as lease:
        waiting = as_a_stranger(acquirable.acquire(timeout=SOON))
        try:
            await lease.renew()
            await lease.renew()  # from the second time on, a script is sent by its digest
            await asyncio.wait([waiting])
        finally:
            await asyncio.gather(waiting, return_exceptions=True)


async def release_by_hand(acquirable: Acquirable) -> None:
    lease = await acquirable.acquire(timeout=5)  # if it could not be released before, it lapses
    await lease.release()


@every_row
@pytest.mark.parametrize("watchdog", ["task", "thread"])
async def test_when_a_lease_is_taken_away_or_its_holder_is_cut_off(scene: Scene, row: Row, watchdog: str) -> None:
    async with scene.client() as client:
        acquirable = row.make(client, "orders", ttl=0.4, watchdog=watchdog)
        with scene.ear.raises(LeaseLostError):
            async with acquirable as lease:
                scene.admin("FLUSHALL")
                await asyncio.sleep(10)
        after_a_loss(scene, lease)
        with scene.ear.raises(ZeroDivisionError):
            async with acquirable:
                scene.admin("FLUSHALL")
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None
        with scene.ear.raises(LeaseLostError):
            async with acquirable as lease:
                scene.proxy.black_hole = True
                await asyncio.sleep(10)
        after_a_loss(scene, lease)
        scene.ear.look_around()


def after_a_loss(scene: Scene, lease: Lease) -> None:
    scene.ear.say("lost lease", lease)
    with scene.ear.raises(LeaseLostError):
        lease.check()


@every_row
async def test_no_secret_shows_when_no_holder_lets_go_or_a_release_is_not_confirmed(scene: Scene, row: Row) -> None:
    async with scene.client() as one, scene.client() as other:
        mine, theirs = row.make(one, "orders", ttl=1), row.make(other, "orders", ttl=1)
        async with mine:
            for timeout in (0, SOON):
                with scene.ear.raises(AcquireTimeoutError):
                    await theirs.acquire(timeout=timeout)
            waiting = asyncio.ensure_future(theirs.acquire())
            await queued(mine, 1)
            scene.proxy.black_hole = True
        with scene.ear.raises(RedisTimeoutError, RedisConnectionError):
            await waiting
        scene.proxy.black_hole = False
        lease = await mine.acquire()
        scene.proxy.black_hole = True
        with scene.ear.raises(RedisTimeoutError, RedisConnectionError):
            await lease.release()
    assert any("could not be confirmed" in text for _, text in scene.ear.heard)


@every_row
async def test_when_the_program_is_wrong(scene: Scene, row: Row) -> None:
    async with scene.client() as client:
        acquirable = row.make(client, "orders", ttl=5)
        async with acquirable as lease:
            if row.id == "lock":
                with scene.ear.raises(RuntimeError):
                    await acquirable.acquire()
            with scene.ear.raises(RuntimeError):
                async with lease, lease:
                    pass
        with scene.ear.raises(RuntimeError):
            await acquirable.release()
        with scene.ear.raises(LeaseLostError):
            lease.check()

        async def take_and_drop() -> None:
            await row.make(client, "dropped", ttl=1).acquire()

        with scene.ear.warnings():
            await asyncio.create_task(take_and_drop())  # that long for a full heap
            await asyncio.sleep(0)  # what ends with a task ends in its callbacks
            gc.collect()
            await until(lambda: scene.ear.hears("dropped without being released"))
        for kind in {row.kind for row in WITH_A_QUEUE}:
            scene.admin("SET", Keys("aiolocks:", kind.name, "typed").part(b"queue"), "no queue")
        with scene.ear.raises(ResponseError, match="WRONGTYPE"):
            await row.make(client, "typed", ttl=0.2).acquire(timeout=1)


async def test_when_a_semaphore_has_another_limit(scene: Scene) -> None:
    async with scene.client() as one, scene.client(scene.url(user="default")) as other:
        with scene.ear.raises(LimitMismatchError):
            await Semaphore(one, "scraper", 2).acquire(permits=3)
        await Semaphore(other, "scraper", 3).statistics()
        async with Semaphore(other, "scraper", 3):
            pass


async def test_when_a_hosted_server_does_not_know_a_command(scene: Scene, servers: Callable[..., RedisServer]) -> None:
    """Redis quotes the arguments of a command that it does not know, and a token is among them."""
    server = servers(options={"rename-command": 'EVALSHA ""'})
    async with FaultProxy(path=server.socket_path) as proxy:
        proxy.on_request = scene.ear.note_request
        for name, prefix in (("a", ""), ("a", "aiolocks:"), ("orders:42", "")):
            async with scene.client(proxy.url) as client:
                lock = Lock(client, name, prefix=prefix, ttl=5)
                lease = await lock.acquire()  # each script is sent whole once
                assert await lease.renew()
                for ask in (lease.renew, lock.acquire, lease.release):
                    with scene.ear.raises(ResponseError, match=r"unknown command .EVALSHA.(\nwhile .*)?\Z"):
                        await ask()
