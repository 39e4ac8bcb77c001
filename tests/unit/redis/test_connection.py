"""A link to a server that goes away while it is being opened is never taken for one that is up."""

import asyncio
import gc
import itertools
import sys
from pathlib import Path
from typing import Any, cast

import hiredis
import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lock
from aiolocks._core.background import background
from aiolocks._redis.clients import Server
from aiolocks._redis.connection import open_connection
from aiolocks._redis.scripts import pack


def test_a_task_of_ours_that_never_begins_as_its_loop_ends_says_nothing() -> None:
    async def never() -> None:
        pytest.fail("it began")

    def begin_and_stop() -> None:
        begun.append(background(never()))
        loop.stop()

    begun: list[asyncio.Task[None]] = []
    loop = asyncio.new_event_loop()
    loop.call_soon(begin_and_stop)
    loop.run_forever()
    loop.close()
    begun.clear()
    gc.collect()  # a warning here, or what cannot be raised, is a failure of this test


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
# redis-py 8.1 asks by it whether the function below is a coroutine function, with or without us.
@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction':DeprecationWarning:redis.asyncio.connection")
def test_a_connection_lost_before_it_was_open_is_opened_again_with_eager_tasks_too() -> None:
    server = FakeServer(version=(7,))
    connected: list[Any] = []

    async def connect(connection: Any) -> None:
        await connection.on_connect()
        connected.append(connection)
        if len(connected) == 1:
            server.connected = False
            asyncio.get_running_loop().call_soon(setattr, server, "connected", True)

    async def main() -> None:
        async with FakeAsyncRedis(server=server) as client:
            client.connection_pool.connection_kwargs.update(
                redis_connect_func=connect, retry=Retry(ConstantBackoff(0.01), 10)
            )
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # from 3.12
            lease = await Lock(client, "a").acquire(timeout=5)
            assert await lease.release()
            assert len(connected) == 2

    asyncio.run(main())


@pytest.mark.asyncio
async def test_a_connection_that_the_server_closed_behind_its_handshake_is_no_link(tmp_path: Path) -> None:
    path = str(tmp_path / "redis.sock")

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(1000)
        writer.write(b"+OK\r\n" * asked.count(b"*"))
        writer.close()

    lost: list[Exception] = []
    async with (
        await asyncio.start_unix_server(greet, path),
        Redis(unix_socket_path=path, protocol=2, password="any") as client,
    ):
        try:
            link = await open_connection(Server(client.connection_pool), None, lost.append)
        except RedisConnectionError:
            return
        async with asyncio.timeout(0.5):
            while not lost:
                await asyncio.sleep(0.01)
        link.close()


@pytest.mark.asyncio
async def test_a_notice_before_or_behind_a_reply_leaves_the_reply_to_its_caller(tmp_path: Path) -> None:
    """Under RESP3 a server sends such between two replies; taken for one, each later reply would be another's."""
    path = str(tmp_path / "redis.sock")
    notice = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
    hello = b"%1\r\n$5\r\nproto\r\n:3\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pings, parser = itertools.count(1), cast("Any", hiredis.Reader())
        while asked := await reader.read(1000):
            parser.feed(asked)
            while command := parser.gets():
                if command[0] == b"PING":
                    writer.write(notice + b":%d\r\n" % next(pings) + notice)
                else:
                    writer.write(hello if command[0] == b"HELLO" else b"+OK\r\n")
        writer.close()
        await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    lost: list[Exception] = []
    answers: list[tuple[str, object]] = []
    async with await asyncio.start_unix_server(serve, path), Redis(unix_socket_path=path, protocol=3) as client:
        link = await open_connection(Server(client.connection_pool), None, lost.append)
        link.send(pack(("PING",)), lambda reply: answers.append(("first", reply)))
        link.send(pack(("PING",)), lambda reply: answers.append(("second", reply)))
        async with asyncio.timeout(5):
            while len(answers) < 2:
                await asyncio.sleep(0.001)
            link.close()
            await served.wait()
    assert answers == [("first", 1), ("second", 2)]
