"""Commands of one session over one link: each call is answered exactly once, whatever becomes of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from aiolocks._core.answers import REPLY_TIMEOUT, NoPrimaryError, NotNowError, RidingOut
from aiolocks._core.keys import Keys
from aiolocks._engine.context import lease_clock
from aiolocks._redis.clients import Server
from aiolocks._redis.connection import Connection, Endpoint
from aiolocks._redis.pipeline import PendingCall, Pipeline
from aiolocks._redis.scripts import Arguments, Command, NamedScript, PlainCommand, load, pack
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.inside import block_loop
from tests.support.virtual import clock


class Echo(Command):
    """A command that cannot be packed with a `bad` word. If *known*, it goes by a digest that no server has."""

    def __init__(self, *, known: bool = False) -> None:
        self.script = "echo"
        self._known = known

    def evalsha(self, args: Arguments) -> bytes:
        return pack(("EVALSHA", b"0" * 40, 0)) if self._known else self.eval(args)

    def eval(self, args: Arguments) -> bytes:
        if b"bad" in args:
            raise ValueError("cannot be packed")
        return pack(("ECHO", *args))


class Answers:
    def __init__(self) -> None:
        self.all: dict[Any, list[object]] = {}

    def __call__(self, call: PendingCall, reply: object) -> None:
        self.all.setdefault(call.subject, []).append(reply)

    async def until(self, count: int) -> dict[Any, list[object]]:
        async with asyncio.timeout(5):
            while len(self.all) < count:
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
        return {subject: [str(reply) for reply in replies] for subject, replies in self.all.items()}


def commands_of(redis: Redis) -> Pipeline:
    return Pipeline(Server(redis.connection_pool), asyncio.get_running_loop(), time.monotonic, lambda: None)


GOOD, BAD = str(b"good"), "cannot be packed"


@pytest.mark.asyncio
@pytest.mark.redis
@pytest.mark.parametrize("connected", [False, True])
async def test_a_call_that_cannot_be_packed_is_answered_with_why(redis: Redis, connected: bool) -> None:
    def no_arguments(call: PendingCall, link: Connection) -> Arguments:
        raise ValueError("cannot be packed")

    arguments: Any
    commands, answers = commands_of(redis), Answers()
    expected: dict[Any, list[object]] = {1: [BAD], 2: [GOOD], 3: [BAD], 4: [GOOD]}
    if connected:
        commands.submit(Echo(), (b"good",), answers, 1.0, 0)
        await answers.until(1)
        expected[0] = [GOOD]
    for number, arguments in enumerate([(b"bad",), (b"good",), no_arguments, (b"good",)], 1):
        commands.submit(Echo(), arguments, answers, 1.0, number)
        assert number not in answers.all, "never before `submit` returns"
    assert await answers.until(len(expected)) == expected
    call = commands.submit(Echo(known=True), (b"bad",), answers, 1.0, "by its digest")
    commands.submit(Echo(), (b"good",), answers, 1.0, "behind it")
    assert await answers.until(len(expected) + 2) == expected | {"by its digest": [BAD], "behind it": [GOOD]}
    assert call.link is None, "by which who asked knows that it was not run"
    commands.close()


@pytest.mark.asyncio
@pytest.mark.redis
async def test_what_is_held_back_by_a_link_that_is_full_waits_for_as_long_as_that_is_answered(redis: Redis) -> None:
    nap = PlainCommand("DEBUG", "SLEEP", "0.03")  # behind which others are not read
    commands, answers = commands_of(redis), Answers()
    commands.submit(Echo(), (b"good",), answers, 1.0, "first")
    await answers.until(1)
    for number in range(40):
        commands.submit(Echo(), (b"x" * 65_536,), answers, 0.4, f"large {number}")
        commands.submit(nap, (), answers, 0.4, f"nap {number}")
    assert commands._waiting, "all went out at once"
    answered = await answers.until(81)
    assert {number: said for number, said in answered.items() if "no reply" in str(said)} == {}
    commands.close()


class Noted(Command):
    """A command of one word, which notes how often it was sent whole."""

    def __init__(self, name: str) -> None:
        self.script = name

    def evalsha(self, args: Arguments) -> bytes:
        return pack((f"{self.name} by digest", *args))

    def eval(self, args: Arguments) -> bytes:
        return pack((self.name, *args))


@asynccontextmanager
async def scripted(
    answer: Callable[[Asked], object] = lambda asked: asked.what,
) -> AsyncIterator[tuple[Answering, Pipeline, "Outcomes", list[str]]]:
    """Have a server that answers so, commands that go to it, their outcomes, and what is heard of lost links."""
    lost: list[str] = []
    server = Answering(answer)
    commands = Pipeline(Server(server), asyncio.get_running_loop(), clock, lambda: lost.append("lost"))
    try:
        yield server, commands, Outcomes(), lost
    finally:
        commands.close()
        await asyncio.sleep(0)


def silent_to_a(asked: Asked) -> object:
    return SILENCE if asked.what == "a" else asked.what


def said(reply: object) -> str:
    return f"{type(reply).__name__}: {reply}" if isinstance(reply, Exception) else str(reply)


class Outcomes(dict[str, Any]):
    """When each call was answered, and with what; never twice."""

    def __call__(self, call: PendingCall, reply: object) -> None:
        assert call.subject not in self
        self[call.subject] = clock(), said(reply)


def ask(
    commands: Pipeline, outcomes: Outcomes, name: str, patience: float = 5.0, unsent: float | None = None
) -> PendingCall:
    return commands.submit(Noted(name), (), outcomes, patience, name, None, unsent)


async def told(commands: Pipeline, outcomes: Outcomes, name: str) -> tuple[float, str]:
    """Return when a call was answered within a second, and with what."""
    ask(commands, outcomes, name)
    await asyncio.sleep(1)
    answered: tuple[float, str] = outcomes.pop(name)
    return answered


LATE = "TimeoutError: Timeout reading from Redis: no reply in time"


async def test_what_was_sent_whole_goes_by_its_digest_from_then_on_over_the_same_link() -> None:
    async with scripted() as (server, commands, outcomes, lost):
        for name in ("a", "b"):
            await told(commands, outcomes, name)
            assert (await told(commands, outcomes, name))[1] == f"{name} by digest"
        server.cut()
        await asyncio.sleep(1)
        assert lost == ["lost"]
        assert (await told(commands, outcomes, "a"))[1] == "a", "who knows what this server has"
    assert len(server.connections) == 2


async def test_what_a_server_has_forgotten_is_sent_whole_once_and_counts_from_when_it_first_left() -> None:
    def answer(asked: Asked) -> object:
        return Later(0.5, NoScriptError("NOSCRIPT No matching script.") if "digest" in asked.what else asked.what)

    async with scripted(answer) as (server, commands, outcomes, lost):
        await told(commands, outcomes, "a")
        call = ask(commands, outcomes, "a")
        await asyncio.sleep(3)
        assert (outcomes, call.sent_at) == ({"a": (2.0, "a")}, 1.0)
        server.answer = lambda asked: NoScriptError("NOSCRIPT No matching script.")
        outcomes.clear()
        assert "NOSCRIPT" in (await told(commands, outcomes, "a"))[1]
        assert not lost
    assert [asked.what for asked in server.asked] == ["a", "a by digest", "a", "a by digest", "a"]


async def test_a_call_given_up_is_not_sent_a_second_time_though_the_server_did_not_know_it() -> None:
    """What undoes it is behind it already."""
    async with scripted() as (server, commands, outcomes, _):
        await told(commands, outcomes, "a")
        server.answer = lambda asked: Later(0.5, NoScriptError("NOSCRIPT No matching script."))
        call = ask(commands, outcomes, "a")
        call.abandon()
        await asyncio.sleep(3)
        assert "NOSCRIPT" in outcomes["a"][1]
    assert len(server.asked) == 2


async def test_a_call_given_up_before_it_was_sent_is_answered_at_once_keeps_nothing_and_never_leaves() -> None:
    async with scripted() as (server, commands, outcomes, _):
        server.hangs = True
        given_up, other = ask(commands, outcomes, "a"), ask(commands, outcomes, "b", unsent=50)
        given_up.abandon()
        assert list(outcomes) == ["a"]
        assert "Given up" in outcomes["a"][1]
        assert given_up.subject is None, "a queue of such calls would keep what they are about"
        assert other.subject == "b"
        server.hangs = False
        await asyncio.sleep(10)
        assert (await told(commands, outcomes, "c"))[1] == "c"
    assert "a" not in [asked.what for asked in server.asked]


async def test_a_call_on_its_way_that_is_given_up_gets_its_reply_all_the_same() -> None:
    async with scripted(lambda asked: Later(1, asked.what)) as (_, commands, outcomes, _):
        await asyncio.sleep(0)
        ask(commands, outcomes, "first")
        await asyncio.sleep(2)
        call = ask(commands, outcomes, "a")
        call.abandon()
        assert (list(outcomes), call.subject) == (["first"], "a")
        await asyncio.sleep(2)
        assert outcomes["a"] == (3.0, "a")


DEMOTED = "You can't write against a read only replica."


@pytest.mark.parametrize("reply", [
    ReadOnlyError(DEMOTED), ResponseError(f"Error running script: @user_script: 8: -READONLY {DEMOTED}"),
    RedisConnectionError("LOADING Redis is loading the dataset in memory"),
], ids=["READONLY", "READONLY within a script", "LOADING"])  # fmt: skip
async def test_a_server_that_is_the_wrong_server_is_left_and_the_calls_behind_it_fail(reply: Exception) -> None:
    def answer(asked: Asked) -> object:
        return Later(0.5, reply if asked.what == "a" else asked.what)

    async with scripted(answer) as (server, commands, outcomes, lost):
        calls: list[object] = []
        commands.submit(Noted("a"), (), lambda _, reply: calls.append(reply), 5, "a")
        ask(commands, outcomes, "b")
        await asyncio.sleep(0.6)
        ask(commands, outcomes, "c")
        assert (lost, isinstance(calls[0], NoPrimaryError)) == (["lost"], "read only" in str(reply))
        assert isinstance(calls[0], RedisConnectionError)
        assert outcomes["b"] == (0.5, f"ConnectionError: {calls[0]}")
        await asyncio.sleep(1)
        assert outcomes["c"][1] == "c", "asked of the next"
    assert len(server.connections) == 2


async def test_a_refusal_leaves_the_link_as_it_is_and_quotes_no_arguments() -> None:
    refusals = {
        "a": "ERR unknown command 'EVALSHA', with args beginning with: 'secret'",
        "b": "OOM command not allowed",
        "c": "BUSY Redis is busy running a script.",
    }

    def answer(asked: Asked) -> object:
        return ResponseError(refusals[asked.what]) if asked.what in refusals else asked.what

    async with scripted(answer) as (server, commands, outcomes, lost):
        replies: list[object] = []
        for name in refusals:
            commands.submit(Noted(name), (), lambda _, reply: replies.append(reply), 5)
        ask(commands, outcomes, "d")
        await asyncio.sleep(1)
        assert [str(reply) for reply in replies] == ["ERR unknown command 'EVALSHA'", refusals["b"], refusals["c"]]
        assert [type(reply) for reply in replies] == [ResponseError, ResponseError, NotNowError]
        assert outcomes["d"][1] == "d"
        assert not lost
    assert len(server.connections) == 1


async def test_a_reply_is_waited_for_as_long_as_its_patience_and_then_the_link_is_given_up() -> None:
    async with scripted(silent_to_a) as (server, commands, outcomes, lost):
        await asyncio.sleep(100)
        ask(commands, outcomes, "first")
        await asyncio.sleep(1)
        ask(commands, outcomes, "a", patience=3)
        ask(commands, outcomes, "behind", patience=50)
        await asyncio.sleep(10)
        assert outcomes["a"] == (104.0, LATE)
        assert outcomes["behind"] == (104.0, LATE)
        assert (lost, (await told(commands, outcomes, "next"))[1]) == (["lost"], "next")
    assert len(server.connections) == 2


async def test_each_reply_starts_the_patience_of_the_calls_behind_it_again() -> None:
    async with scripted(lambda asked: Later(0.9 * int(asked.what), asked.what)) as (server, commands, outcomes, lost):
        for number in range(1, 21):
            ask(commands, outcomes, str(number), patience=1)
        await asyncio.sleep(30)
        assert outcomes == {str(number): (0.9 * number, str(number)) for number in range(1, 21)}
        assert not lost
        server.answer = lambda asked: Later(0.9, asked.what) if asked.what == "some" else SILENCE
        ask(commands, outcomes, "some", patience=1)
        ask(commands, outcomes, "never", patience=1)
        await asyncio.sleep(30)
        assert outcomes["never"] == (pytest.approx(31.9), LATE)


async def test_a_call_that_finds_no_link_waits_for_one_as_long_as_it_says_and_no_longer() -> None:
    async with scripted() as (server, commands, outcomes, _):
        server.hangs = True
        await asyncio.sleep(100)
        ask(commands, outcomes, "by patience", patience=0.5, unsent=None)
        ask(commands, outcomes, "soon", patience=50, unsent=1.0)
        ask(commands, outcomes, "later", patience=0.5, unsent=50)
        await asyncio.sleep(10)
        no_link = "TimeoutError: Timeout connecting to server"
        assert outcomes == {"by patience": (100.5, no_link), "soon": (101.0, no_link), "later": (102.0, no_link)}
        assert server.tried == [100]


async def test_a_call_that_gives_way_waits_with_more_patient_calls_for_a_second_of_silence() -> None:
    async def given_up_at(*others: float) -> float:
        async with scripted(lambda asked: SILENCE) as (_, commands, outcomes, _):
            at = clock()
            for number, patience in enumerate(others):
                ask(commands, outcomes, f"other {number}", patience)
            for name in ("undo", "another undo"):
                ask(commands, outcomes, name, patience=0.25).gives_way = True
            await asyncio.sleep(20)
            assert {said for _, said in outcomes.values()} == {LATE}
            took: float = outcomes["undo"][0] - at
            return took

    assert (await given_up_at(), await given_up_at(5)) == (0.25, 1.0)
    assert await given_up_at(0.6) == pytest.approx(0.6)
    assert await given_up_at(5, 0.6) == pytest.approx(0.6)


async def test_one_connection_is_made_for_all_and_what_failed_is_told_to_all() -> None:
    async with scripted() as (server, commands, outcomes, lost):
        server.refuses = True
        for name in ("a", "b"):
            ask(commands, outcomes, name)
        await asyncio.sleep(1)
        assert outcomes == dict.fromkeys("ab", (0.0, "ConnectionError: refused"))
        assert (server.tried, lost) == ([0], [])
        server.refuses = False
        for name in ("c", "d"):
            ask(commands, outcomes, name)
        await asyncio.sleep(1)
        assert (outcomes["c"], outcomes["d"]) == ((1.0, "c"), (1.0, "d"))
        assert server.tried == [0, 1]


async def test_a_hundred_that_connect_at_once_all_do_at_their_first_attempt_though_each_keeps_the_loop_busy() -> None:
    """redis-py loads certificates for each connection over TLS. A timeout that began before would be over for all."""
    server, outcomes, tried = Answering(lambda asked: asked.what), Outcomes(), list[float]()
    server.slow = 0.001

    class Costly(Endpoint):
        async def connect(self) -> Any:
            tried.append(clock())
            block_loop(0.05)
            return await Server(server).connect()

        def retry(self) -> Retry:
            return Retry(NoBackoff(), 0)

    loop = asyncio.get_running_loop()
    pipelines = [Pipeline(Costly(), loop, clock, lambda: None) for _ in range(100)]
    calls = [ask(pipeline, outcomes, str(number), 30.0) for number, pipeline in enumerate(pipelines)]
    await asyncio.sleep(10)
    assert {said for _, said in outcomes.values()} == {str(number) for number in range(len(calls))}
    assert len(tried) == len(calls)
    for pipeline in pipelines:
        pipeline.close()
    await asyncio.sleep(0)


async def test_closing_a_pipeline_fails_its_calls_and_a_later_call_connects_again() -> None:
    async with scripted(silent_to_a) as (server, commands, outcomes, _):
        ask(commands, outcomes, "a")
        await asyncio.sleep(1)
        commands.close()
        assert outcomes == {"a": (1.0, "ConnectionError: Connection closed.")}
        server.hangs = True
        ask(commands, outcomes, "b")
        await asyncio.sleep(1)
        commands.close()
        assert outcomes["b"] == (2.0, "ConnectionError: Connection closed.")
        await asyncio.sleep(0.5)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it goes on connecting"
        server.hangs = False
        assert await told(commands, outcomes, "c") == (2.5, "c")
    assert server.tried == [0, 1, 2.5]


async def test_a_call_to_a_closed_pipeline_that_still_connects_fails_and_can_be_repeated() -> None:
    async with scripted() as (server, commands, outcomes, _):
        server.hangs = True
        ask(commands, outcomes, "a")
        await asyncio.sleep(1)
        commands.close()
        server.hangs = False
        assert await told(commands, outcomes, "b") == (1.0, "ConnectionCancelled: Connecting was cancelled.")
        assert (await told(commands, outcomes, "c"))[1] == "c"


async def test_a_connection_made_though_cancelled_is_closed_unless_a_call_has_asked_again() -> None:
    """Before Python 3.12 `wait_for` swallows many a cancellation."""
    async with scripted() as (server, commands, outcomes, _):
        server.hangs = server.deaf = True
        ask(commands, outcomes, "a")
        await asyncio.sleep(1)
        commands.close()
        await asyncio.sleep(1)
        [made] = server.connections
        assert made._reader is None, "it stays open"
        ask(commands, outcomes, "b")
        await asyncio.sleep(1)
        commands.close()
        assert await told(commands, outcomes, "c") == (3.0, "c")
    assert len(server.connections) == 2


async def test_the_policy_of_the_client_is_copied_and_what_is_ridden_out_is_asked_again_but_once() -> None:
    async with scripted() as (server, commands, _, _):
        own = server.connection_kwargs["retry"]
        once, usual = commands.retry_policy(once=True), commands.retry_policy()
        assert isinstance(once, Retry)
        assert once is not own
        assert once.get_retries() == own.get_retries()
        assert isinstance(usual, RidingOut)
        del server.connection_kwargs["retry"]
        connection = server.make_connection()
        connection.retry = Retry(NoBackoff(), 7)
        server.make_connection = lambda: connection  # type: ignore[method-assign]  # redis-py's have a policy when made
        default = commands.retry_policy(once=True)
        assert isinstance(default, Retry)
        assert default.get_retries() == 7


async def link_of(commands: Pipeline, outcomes: Outcomes) -> Any:
    links: list[Any] = []

    def arguments(call: PendingCall, link: Connection) -> Arguments:
        links.append(link)
        return ()

    commands.submit(Noted("first"), arguments, outcomes, 5, "first")
    await asyncio.sleep(1)
    return links[0]


def room(commands: Pipeline, link: Any, *, full: bool) -> None:
    link.full = full
    commands._flow()  # as the link does


async def test_what_a_full_link_has_no_room_for_is_held_back_and_can_be_given_up() -> None:
    async with scripted() as (server, commands, outcomes, lost):
        link = await link_of(commands, outcomes)
        room(commands, link, full=True)
        held_back, given_up = ask(commands, outcomes, "a", patience=0.5, unsent=5), ask(commands, outcomes, "b")
        await asyncio.sleep(1)
        assert [asked.what for asked in server.asked] == ["first"]
        given_up.abandon()
        room(commands, link, full=False)
        await asyncio.sleep(1)
        assert outcomes["a"] == (2.0, "a")
        assert held_back.sent_at == 2.0
        assert "Given up" in outcomes["b"][1]
        ask(commands, outcomes, "c")
        assert [asked.what for asked in server.asked] == ["first", "a", "c"], "at once, as there is room"
        room(commands, link, full=True)
        ask(commands, outcomes, "d", unsent=5)
        server.cut()
        await asyncio.sleep(1)
        assert outcomes["d"] == (3.0, "d"), "over the next link"
        assert lost == ["lost"]


async def test_what_a_full_link_that_answers_nothing_holds_back_is_told_when_its_time_has_come() -> None:
    async with scripted() as (_, commands, outcomes, lost):
        room(commands, await link_of(commands, outcomes), full=True)
        ask(commands, outcomes, "a", patience=2)
        await asyncio.sleep(10)
        assert outcomes["a"] == (3.0, LATE)
        assert not lost


async def test_how_long_replies_take_is_known_at_once_and_forgotten_slowly() -> None:
    async with scripted() as (server, commands, outcomes, _):
        for took, round_trip, patience, undo_patience in [
            (0.055, 0.055, 1.0, 0.25), (0.1, 0.1, 1.0, 0.4), (0.4, 0.4, 1.6, 1.0), (1.0, 1.0, 4.0, 1.0),
            (0.0, 0.8, 3.2, 1.0), (0.0, 0.64, 2.56, 1.0), (3.0, 3.0, REPLY_TIMEOUT, 1.0),
        ]:  # fmt: skip
            server.answer = lambda asked, took=took: Later(took, asked.what)  # type: ignore[misc]  # bound as it is made
            ask(commands, outcomes, str(round_trip))
            await asyncio.sleep(5)
            assert commands.round_trip == pytest.approx(round_trip)
            assert (commands.patience, commands.undo_patience) == pytest.approx((patience, undo_patience))


async def test_what_is_submitted_when_it_has_connected_goes_ahead_of_what_waited_for_that() -> None:
    """W24: a session's own releases, whose connection was lost."""
    server, sent = Answering(lambda asked: b"done"), Answers()

    def connected() -> None:
        pipeline.submit(Echo(), (b"first",), sent, 1.0, "first")

    pipeline = Pipeline(Server(server), asyncio.get_running_loop(), clock, lambda: None, connected)
    for subject in ("second", "third"):
        pipeline.submit(Echo(), (subject.encode(),), sent, 1.0, subject)
    await asyncio.sleep(0.5)
    assert list(sent.all) == ["first", "second", "third"]
    pipeline.close()
    await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.redis
async def test_a_reply_read_after_a_pause_makes_no_waiter_wait_longer_than_the_contract_says(redis: Redis) -> None:
    """A minute for which the process was stopped looks like a round trip, and tells nothing of the next one."""
    paused, keys = 0.0, Keys("aiolocks:", "lock", "paused")
    commands = Pipeline(
        Server(redis.connection_pool), asyncio.get_running_loop(), lambda: lease_clock() + paused, lambda: None
    )
    statistics = NamedScript(load("lock/statistics"), keys.base, keys.base)
    for pause in (0.0, 60.0):
        replied = asyncio.Event()

        def receive(call: PendingCall, reply: object, replied: asyncio.Event = replied) -> None:
            assert not isinstance(reply, Exception)
            replied.set()

        commands.submit(statistics, (0,), receive, REPLY_TIMEOUT)
        paused += pause
        await asyncio.wait_for(replied.wait(), timeout=5)
    assert commands.round_trip > REPLY_TIMEOUT
    assert commands.patience <= REPLY_TIMEOUT
    commands.close()
