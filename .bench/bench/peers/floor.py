"""The least that a lock on Redis can cost in asyncio: SET NX PX, and a script that compares and deletes.

A bare protocol over hiredis writes the commands of one turn of the event loop at once. There is no queue, no fencing
token, no renewal and no undo, and a lost connection is not replaced. A caller that finds the lock taken asks again
after 10 ms.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha1
from typing import Any, Never, cast
from urllib.parse import urlsplit

import hiredis

from bench.peers import SAFETY, Turn

_RELEASE = b"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_RELEASE_SHA = sha1(_RELEASE).hexdigest()
_ASK_AGAIN = 0.01


class _Link(asyncio.Protocol):
    """One connection. Replies come in the order of the commands."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of its instances
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._unsent: list[bytes] = []
        self._unanswered: deque[asyncio.Future[Any]] = deque()

    def ask(self, *command: bytes | str | int) -> asyncio.Future[Any]:
        if self._transport.is_closing():
            raise ConnectionError("the connection is lost")
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub knows one element only
        answer = self._loop.create_future()
        self._unanswered.append(answer)
        return answer

    def _flush(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._unanswered:
            if not answer.done():
                answer.set_exception(ConnectionError("the connection is lost"))

    def data_received(self, data: bytes) -> None:
        reader, unanswered = self._reader, self._unanswered
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            answer = unanswered.popleft()
            if not answer.done():
                answer.set_result(reply)


class _Block:
    def __init__(self, acquire: Callable[[], Awaitable[bytes]], release: Callable[[bytes], Awaitable[Any]]) -> None:
        self._acquire = acquire
        self._release = release

    async def __aenter__(self) -> None:
        self._token = await self._acquire()

    async def __aexit__(self, *_: object) -> None:
        await self._release(self._token)


class _Client:
    def __init__(self, link: _Link) -> None:
        self._link = link

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        ask, ttl_ms = self._link.ask, round(1000 * ttl)

        async def acquire() -> bytes:
            token = os.urandom(16)
            while await ask("SET", name, token, "NX", "PX", ttl_ms) is None:
                await asyncio.sleep(_ASK_AGAIN)
            return token

        def release(token: bytes) -> asyncio.Future[Any]:
            return ask("EVALSHA", _RELEASE_SHA, 1, name, token)

        return Turn(acquire, release, block=lambda: _Block(acquire, release))

    def semaphore(self, name: str, limit: int) -> Turn:
        raise NotImplementedError


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    assert connections is None, "one connection"
    host, _, port = urlsplit(url).netloc.partition(":")
    transport, link = await asyncio.get_running_loop().create_connection(_Link, host, int(port))
    try:
        await link.ask("SCRIPT", "LOAD", _RELEASE)
        yield _Client(link)
    finally:
        transport.close()
