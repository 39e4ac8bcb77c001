"""A proxy in front of a Redis that answers some requests itself, as no script of ours does.

It passes all other requests and answers unchanged. It knows only plain RESP 2 and 3.
"""

import asyncio
from contextlib import closing, suppress
from functools import cache
from typing import Self, final

from tests.simulation.requests import scripts, words_of
from tests.support.inside import Pairing, Scanner

ODD = {
    "a status": b"+OK\r\n", "a string": b"$5\r\nhello\r\n", "digits": b"$2\r\n17\r\n", "zero": b":0\r\n",
    "a number below zero": b":-7\r\n", "nil": b"$-1\r\n", "a null": b"_\r\n", "a map": b"%1\r\n+server\r\n+proxy\r\n",
    "a map of lists": b"%1\r\n*0\r\n:1\r\n", "a float": b",1.5\r\n", "a float below zero": b",-1\r\n",
    "true": b"#t\r\n", "not a number": b",nan\r\n",
    "a number of 5,000 digits": b"(" + b"9" * 5000 + b"\r\n", "an empty list": b"*0\r\n",
    "a list of nothing": b"*1\r\n$-1\r\n", "a verdict alone": b"*1\r\n$6\r\nqueued\r\n",
    "a verdict of strings": b"*6\r\n$6\r\nqueued\r\n" + b"$1\r\nx\r\n" * 5,
    "a list of strings": b"*7\r\n" + b"$1\r\nx\r\n" * 7, "lists in lists": b"*2\r\n*1\r\n*0\r\n*0\r\n",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n", "a redirection to nowhere": b"-MOVED\r\n",
}  # fmt: skip
"""Raw answers, each by its description."""


@final
class OddAnswers:
    """Stand between clients and the Redis at the unix socket *path*.

    `instead` has the answers that it gives itself, and `asked` how often each was asked, by script (`lock_grant`) or
    command (`WAIT`).
    """

    def __init__(self, path: str) -> None:
        self.instead: dict[str, bytes] = {}
        self.asked: dict[str, int] = {}
        self.connections = 0
        self._path = path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        pairing, scanner = Pairing(), Scanner()
        with closing(writer), suppress(ConnectionError, asyncio.CancelledError):
            upstream, to_server = await asyncio.open_unix_connection(self._path)
            answers = asyncio.ensure_future(self._answer(upstream, writer, pairing))
            try:
                while chunk := await reader.read(65536):
                    for request in scanner.feed(chunk):
                        pairing.ask(request)
                        to_server.write(request)
            finally:
                answers.cancel()
                to_server.close()

    async def _answer(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, pairing: Pairing) -> None:
        scanner = Scanner()
        while chunk := await upstream.read(65536):
            for reply in scanner.feed(chunk):
                request = pairing.answer(reply)
                what = "" if request is None else name_of(words_of(request))
                self.asked[what] = self.asked.get(what, 0) + 1
                writer.write(self.instead.get(what, reply))
        writer.close()


_known = cache(scripts)


def name_of(words: list[bytes]) -> str:
    """Return what a request asks for: a script (`lock_grant` for `lock/grant`) or a command."""
    script = _known().get(words[1]) if len(words) > 1 else None
    return script.name.replace("/", "_") if script is not None else words[0].decode()
