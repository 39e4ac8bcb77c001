"""A link by itself: over a pair of sockets of which the test has the other end, and over what has no stream."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from aiolocks._core.background import _Quiet, background, in_background
from aiolocks._redis.clients import Server
from aiolocks._redis.connection import ConnectionCancelled, ReplyConnection, StreamConnection, open_connection
from aiolocks._redis.scripts import pack
from tests.support.answering import Answering


class Ends:
    def __init__(self, connection: Any, there: socket.socket, *, push: bool) -> None:
        self.connection = connection
        self.there = there
        self.pushed: list[object] = []
        self.lost: list[Exception] = []
        self.flows: list[bool] = []
        self.heard: list[object] = []
        self.replies: list[Any] = []
        on_push = self.pushed.append if push else None
        self.link = StreamConnection(connection, on_push, self.lost.append, self._flow, self.heard.append)

    def _flow(self) -> None:
        self.flows.append(self.link.full)

    def full(self) -> bool:
        return self.link.full

    def arrived(self) -> bytes:
        data = b""
        try:
            while part := self.there.recv(1 << 20):
                data += part
        except BlockingIOError:
            return data
        return data + b"(end)"

    async def answer(self, data: bytes) -> None:
        self.there.send(data)
        await turns()

    async def ended(self) -> bytes:
        data = b""
        async with asyncio.timeout(30):
            while not data.endswith(b"(end)"):
                data += self.arrived()
                await asyncio.sleep(0.001)
        return data.removesuffix(b"(end)")


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def ends(*, push: bool = False, before: bytes = b"") -> AsyncIterator[Ends]:
    here, there = socket.socketpair()
    there.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=here)
    reader.feed_data(before)
    parser = SimpleNamespace(parse_error=lambda text: ResponseError(text))
    connection = SimpleNamespace(_reader=reader, _writer=writer, _parser=parser)
    told = Ends(connection, there, push=push)
    try:
        yield told
    finally:
        told.link.close(RedisConnectionError("the test is over"))
        there.close()
        writer.close()
        await turns()


in_real_time = pytest.mark.asyncio

PING = pack(("PING",))


@in_real_time
async def test_a_lone_command_goes_out_at_once_and_what_follows_in_this_turn_together_or_in_parts() -> None:
    async with ends() as told:
        assert told.link.distant
        for number in range(3):
            told.link.send(b"first %d " % number, None)
            told.link.send(b"second ", None)
            told.link.send(b"third ", None)
            assert told.arrived() == b"first %d " % number
            await turns()
            assert told.arrived() == b"second third "
        for number in range(200):
            told.link.send(b"%d " % number, None)
        so_far = told.arrived()
        assert so_far.count(b" ") > 64, "some go out before the last is made"
        await turns()
        assert so_far + told.arrived() == b"".join(b"%d " % number for number in range(200))


@in_real_time
async def test_a_stream_reports_when_it_is_full_and_when_there_is_room_again() -> None:
    async with ends() as told:
        assert not told.full()
        size = 4 << 20
        told.link.send(b"x" * size, None)
        assert told.full()
        assert told.flows == [True]
        arrived = 0
        async with asyncio.timeout(30):
            while arrived < size:
                arrived += len(told.arrived())
                await asyncio.sleep(0)
        assert not told.full()
        assert told.flows == [True, False]


@in_real_time
async def test_replies_go_to_their_callers_in_order_when_they_are_whole() -> None:
    async with ends() as told:
        first, second = told.replies.append, lambda reply: told.replies.append(("second", reply))
        told.link.send(PING, first)
        told.link.send(PING, None)
        told.link.send(PING, second)
        await told.answer(b"$3\r\nab")
        assert told.replies == []
        assert told.heard == [first], "it is under way"
        await told.answer(b"c\r\n-ERR no\r\n:7\r\n")
        reply, (name, error) = told.replies
        assert (reply, name) == (b"abc", "second")
        assert isinstance(error, ResponseError)
        assert told.heard == [first, first]
        await told.answer(b":8\r\n")
        assert len(told.replies) == 2, "nobody asked"
        assert told.heard == [first, first]
        assert not told.lost


@in_real_time
async def test_what_had_come_before_the_link_was_made_is_not_lost_and_the_link_alone_keeps_its_connection() -> None:
    async with ends(before=b"$3\r\na") as told:
        told.connection = None
        gc.collect()
        told.link.send(PING, told.replies.append)
        await told.answer(b"bc\r\n")
        assert told.replies == [b"abc"]
        assert not told.lost


@in_real_time
async def test_a_push_message_goes_to_its_listener() -> None:
    async with ends(push=True) as told:
        told.link.send(PING, None)
        await told.answer(b"*1\r\n:1\r\n:2\r\n")
        assert (told.pushed, told.heard) == ([[1], 2], [])


@pytest.mark.parametrize("how", ["closed by the server", "broken", "garbage"])
@in_real_time
async def test_each_caller_that_waits_for_a_reply_learns_of_a_lost_link_once(how: str) -> None:
    async with ends() as told:
        for _ in range(2):
            told.link.send(PING, told.replies.append)
        await turns()
        assert told.arrived() == 2 * PING
        if how == "closed by the server":
            told.there.close()
        elif how == "broken":
            told.link.connection_lost(OSError("reset"))
        else:
            told.there.send(b"nonsense\r\n")
        async with asyncio.timeout(30):
            while not told.lost:
                await asyncio.sleep(0)
        [reason] = told.lost
        assert isinstance(reason, RedisConnectionError)
        said = {"broken": "Connection lost: reset", "garbage": "not its protocol"}.get(how, "closed by server")
        assert said in str(reason)
        assert told.replies == [reason, reason]
        assert told.link.lost is reason
        assert told.connection._reader is None
        assert told.connection._writer is None
        told.link.send(PING, told.replies.append)
        told.link.send(PING, None)
        assert len(told.replies) == 2, "never before `send` returns"
        await turns()
        assert told.replies == [reason] * 3
        told.link.close()
        assert told.lost == [reason]


@in_real_time
async def test_many_requests_over_a_link_that_was_just_lost_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio reports a loss one turn later, and by then warns of each write."""
    async with ends() as told:
        answers: list[object] = []
        told.there.close()
        for _ in range(1000):
            told.link.send(PING, answers.append)
        await turns()
        assert len(answers) == 1000
        assert all(isinstance(answer, RedisConnectionError) for answer in answers)
    assert [record for record in caplog.records if "Executing" not in record.getMessage()] == []


@in_real_time
async def test_closing_a_link_fails_its_callers_and_written_requests_still_leave() -> None:
    async with ends() as told:
        told.link.send(b"first ", told.replies.append)
        told.link.send(b"second ", told.replies.append)
        told.link.close()
        assert ([str(reply) for reply in told.replies], len(told.lost)) == (["Connection closed."] * 2, 1)
        assert await told.ended() == b"first second "
    async with ends() as told:
        told.link.send(b"x" * (4 << 20), None)
        told.link.close()
        assert len(await told.ended()) == 4 << 20


@in_real_time
async def test_a_link_that_is_given_up_is_closed_though_the_other_end_does_not_read() -> None:
    async with ends() as told:
        told.link.send(b"x" * (4 << 20), told.replies.append)
        reason = RedisConnectionError("silent")
        told.link.close(reason)
        assert (told.replies, told.lost) == ([reason], [reason])
        await turns()
        assert len(await told.ended()) < 4 << 20


@in_real_time
async def test_the_copy_of_a_fork_is_let_go_unseen_by_the_other_end() -> None:
    async with ends() as told:
        parents = os.dup(told.connection._writer.transport.get_extra_info("socket").fileno())
        try:
            free = os.dup(parents)
            os.close(free)
            told.link.detach_in_fork()
            again = os.dup(parents)
            os.close(again)
            assert again == free, "a file stays open"
            told.link.send(PING, None)
            assert told.arrived() == b""
            told.link.close(RedisConnectionError("over"))
            await turns()
            assert told.arrived() == b"", "it saw the end"
            told.link.detach_in_fork()  # which does nothing, as it is closed
        finally:
            os.close(parents)


class Bare:
    def __init__(self, *, push: bool = False, answer: object = b"reply") -> None:
        self.server = Answering(lambda asked: answer)
        self.connection: Any = self.server.make_connection()
        self.read_with: list[dict[str, object]] = []
        read = self.connection.read_response

        async def read_response(**options: object) -> object:
            self.read_with.append(options)
            return await read()

        self.connection.read_response = read_response  # type: ignore[method-assign]  # to see what is asked of it
        self.pushed: list[object] = []
        self.lost: list[Exception] = []
        self.heard: list[object] = []
        self.replies: list[Any] = []
        self.link = ReplyConnection(
            self.connection, self.pushed.append if push else None, self.lost.append, self.heard.append
        )

    def send(self) -> None:
        self.link.send(PING, self.replies.append)


async def test_without_a_stream_replies_go_to_their_callers_and_errors_are_replies() -> None:
    bare = Bare()
    assert not bare.link.distant
    bare.send()
    bare.link.send(PING, None)
    await turns()
    bare.server.answer = lambda asked: ResponseError("ERR no")
    bare.send()
    await asyncio.sleep(1)
    assert bare.replies[0] == b"reply"
    assert isinstance(bare.replies[1], ResponseError)
    assert bare.heard == [bare.replies.append] * 2
    assert bare.read_with[0] == {"disable_decoding": True, "disconnect_on_error": False, "push_request": False}
    assert not bare.lost
    bare.link.close()
    await turns()


async def test_without_a_stream_a_push_message_goes_to_its_listener() -> None:
    bare = Bare(push=True)
    bare.link.send(PING, None)
    await asyncio.sleep(1)
    assert bare.pushed == [b"reply"]
    assert bare.read_with[0]["push_request"]
    assert not bare.heard
    bare.link.close()
    await turns()


@pytest.mark.parametrize("how", ["closed", "cut", "cancelled", "cannot write"])
async def test_without_a_stream_each_caller_learns_of_the_end_once_and_nothing_is_left(how: str) -> None:
    bare, closed = Bare(), list[str]()
    bare.connection._sock = SimpleNamespace(close=lambda: closed.append("closed"))
    bare.server.answer = lambda asked: asyncio.sleep  # what never comes is not asked for
    await turns()
    bare.link.receivers.append(bare.replies.append)
    if how == "closed":
        bare.link.close()
    elif how == "cut":
        bare.connection.replies.put_nowait(RedisConnectionError("cut"))
    elif how == "cancelled":
        [task] = [task for task in asyncio.all_tasks() if in_background(task)]
        task.cancel()
    else:
        bare.connection._writer = None
        bare.send()
    await turns()
    [reason] = bare.lost
    assert (isinstance(reason, ConnectionCancelled), "cut" in str(reason)) == (how == "cancelled", how == "cut")
    assert isinstance(reason, RedisError)
    assert (set(bare.replies), closed) == ({reason}, ["closed"])
    assert bare.connection._sock is bare.connection._reader is bare.connection._writer is None
    told = len(bare.replies)
    bare.send()
    bare.link.send(PING, None)
    assert len(bare.replies) == told
    await turns()
    assert bare.replies[told:] == [reason]
    bare.link.close()
    assert (bare.lost, asyncio.all_tasks()) == ([reason], {asyncio.current_task()})


async def test_a_connection_is_made_once_and_nothing_but_what_is_asked_goes_over_it() -> None:
    """Retries of redis-py's, its health checks and its bound for any read would all be in the way."""
    server = Answering(lambda asked: b"reply")
    link = await open_connection(Server(server), None, lambda reason: None)
    [connection] = server.connections
    assert connection.retry.get_retries() == 0  # type: ignore[attr-defined]  # as redis-py's
    assert connection.health_check_interval == 0
    assert connection.socket_timeout is None
    link.close()
    await turns()


@pytest.mark.parametrize("how", ["refused", "cancelled"])
async def test_a_connection_that_does_not_come_about_is_dropped_without_waiting(how: str) -> None:
    server, dropped = Answering(lambda asked: b"reply"), list[bool]()
    connection: Any = server.make_connection()

    async def disconnect(nowait: bool = False) -> None:
        dropped.append(nowait)

    connection.disconnect = disconnect
    server.make_connection = lambda: connection  # type: ignore[method-assign]  # the pool's
    server.refuses, server.hangs = how == "refused", how == "cancelled"
    with pytest.raises(RedisConnectionError if server.refuses else TimeoutError):
        async with asyncio.timeout(1):
            await open_connection(Server(server), None, lambda reason: None)
    assert dropped == [True]


def test_a_task_of_ours_whose_loop_is_closed_under_it_says_nothing() -> None:
    said: list[object] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: said.append(context))

    async def begin() -> None:
        others = asyncio.create_task(asyncio.sleep(0))
        task = background(asyncio.sleep(1000))
        assert in_background(task)
        assert not in_background(others)
        await others

    loop.run_until_complete(begin())
    loop.close()
    gc.collect()
    assert not said


def test_what_wraps_a_coroutine_closes_it_and_shows_it() -> None:
    async def nothing() -> None:
        pass

    coroutine: Coroutine[Any, Any, None] = nothing()
    quiet: Any = _Quiet(coroutine)
    assert quiet.cr_code is nothing.__code__
    quiet.close()
    with pytest.raises(RuntimeError, match="already awaited"):
        coroutine.send(None)
