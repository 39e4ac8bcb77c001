"""Answers that no script of ours gives, as of a port that is something else: each call ends with redis-py's error."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lock, RWLock, Semaphore, Versioned
from tests.faults.support.asking import outcome_of
from tests.support.kinds import families
from tests.support.lateness import TooLateError, kept, measured_lag
from tests.support.network import until
from tests.support.odd_answers import ODD, OddAnswers
from tests.support.primitives import STEADY, one_of_each_family
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults, pytest.mark.leaves_residue]

MOST_A_SECOND = 40
"""Attempts to connect, and requests of one kind, in a second at most."""


async def _error_of(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    async with asyncio.timeout(5), measured_lag() as lag:
        result, _ = await outcome_of(call)
    if isinstance(result, RedisTimeoutError) and lag.worst > 0.3:
        raise TooLateError(str(result))  # The request timed out before its odd answer came.
    return result if isinstance(result, BaseException) else None


@asynccontextmanager
async def odd_answers(server: RedisServer, **options: Any) -> AsyncIterator[tuple[OddAnswers, Redis]]:
    """The proxy and a client of it; nothing reaches the loop's handler of exceptions meanwhile."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with OddAnswers(server.socket_path) as proxy:
        async with Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), **options) as client:
            yield proxy, client
        assert not unhandled, [each.get("exception", each) for each in unhandled]


@pytest.mark.parametrize("odd", ODD)
async def test_an_attempt_ends_when_redis_answers_it_oddly(one_server: RedisServer, odd: str) -> None:
    async with odd_answers(one_server) as (proxy, client):
        proxy.instead = {f"{family}_grant": ODD[odd] for family in families()}
        for row in one_of_each_family().values():
            lock = row.make(client, "odd")
            error = await _error_of(lock.try_acquire)
            assert isinstance(error, RedisConnectionError), (lock, error)
            assert "answered" in str(error)
        assert [proxy.asked[each] for each in proxy.instead] == [1] * len(proxy.instead), proxy.asked
        proxy.instead = {}
        async with Lock(client, "odd"):
            pass


ASKED: dict[str, tuple[str, Callable[[Redis], Awaitable[object]]]] = {
    "locked": ("lock_statistics", lambda client: Lock(client, "odd").locked()),
    "holders": ("lock_holders", lambda client: Lock(client, "odd").holders()),
    "waiters": ("lock_waiters", lambda client: Lock(client, "odd").waiters()),
    "revoke": ("lock_revoke", lambda client: Lock(client, "odd").revoke(timeout=1)),
    "statistics": ("semaphore_statistics", lambda client: Semaphore(client, "odd", 3).statistics()),
    "resize": ("semaphore_resize", lambda client: Semaphore(client, "odd", 3).resize(4)),
    "pause": ("semaphore_pause", lambda client: Semaphore(client, "odd", 3).pause(0.001)),
    "resume": ("semaphore_pause", lambda client: Semaphore(client, "odd", 3).resume()),
    "modes": ("modes_statistics", lambda client: RWLock(client, "odd").write.locked()),
    "read": ("versioned_read", lambda client: Versioned(client, "odd").read()),
    "write": ("versioned_write", lambda client: Versioned(client, "odd").update(lambda _: "1")),
}
"""By the script: what runs it."""


@pytest.mark.parametrize("verb", ASKED)
async def test_a_question_that_is_answered_oddly_ends_with_redis_pys_error(one_server: RedisServer, verb: str) -> None:
    script, ask = ASKED[verb]
    async with Redis.from_url(one_server.url) as holder, Lock(holder, "odd"):
        for odd in ODD:
            async with odd_answers(one_server) as (proxy, client):
                proxy.instead = {script: ODD[odd]}
                error = await _error_of(partial(ask, client))
                assert proxy.asked[script] == 1, (odd, proxy.asked)
                assert isinstance(error, RedisConnectionError), (odd, error)


HELD: dict[str, tuple[str, Callable[[Any], Callable[[], Awaitable[object]]], set[str]]] = {
    "renew": ("lock_renew", lambda lease: lease.renew, {"zero"}),
    "guard": ("lock_guard", lambda lease: partial(lease.guard, ("SET", "test:guarded", "1")), {"zero"}),
    "hand_off": ("lock_hand_off", lambda lease: lease.hand_off, {"zero", "a number below zero"}),
    "release": ("lock_release", lambda lease: lease.release, {"zero"}),
}


@pytest.mark.parametrize("verb", HELD)
async def test_an_odd_answer_does_not_end_a_lease(one_server: RedisServer, verb: str) -> None:
    """Only "not yours any more" does; what cannot be read is as good as no answer."""
    script, call, usual = HELD[verb]

    async def with_the_answer(odd: str) -> None:
        proxy = OddAnswers(one_server.socket_path)
        async with proxy, Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as client, kept(STEADY):
            lease = await Lock(client, odd, ttl=STEADY).acquire()
            proxy.instead = {script: ODD[odd]}
            error = await _error_of(call(lease))
            assert isinstance(error, RedisConnectionError), (odd, error)
            proxy.instead = {}
            if verb not in {"hand_off", "release"}:
                lease.check()
            await lease.release()

    async with odd_answers(one_server):  # for its handler of exceptions
        ends = await asyncio.gather(*map(with_the_answer, ODD.keys() - usual), return_exceptions=True)
    for error in sorted(filter(None, ends), key=lambda error: isinstance(error, TooLateError)):
        raise error


@pytest.mark.parametrize("odd", ODD)
async def test_a_block_whose_release_is_answered_oddly_is_left_in_time(one_server: RedisServer, odd: str) -> None:
    async with odd_answers(one_server) as (proxy, client):
        async with asyncio.timeout(3):
            async with Lock(client, "odd", ttl=1):
                proxy.instead = {"lock_release": b":7\r\n" if odd == "zero" else ODD[odd]}
        assert proxy.asked["lock_release"] <= 2 * MOST_A_SECOND
        proxy.instead = {}


@pytest.mark.parametrize("odd", ODD)
async def test_a_waiter_whose_rechecks_are_answered_oddly_backs_off(one_server: RedisServer, odd: str) -> None:
    """Its turn comes all the same once the answers are right again."""
    async with Redis.from_url(one_server.url) as holder, odd_answers(one_server) as (proxy, client):
        held = await Lock(holder, "odd").acquire()
        waiting = asyncio.create_task(Lock(client, "odd", ttl=4).acquire())
        await until(lambda: "lock_recheck" in proxy.asked)
        proxy.instead = {"lock_recheck": ODD[odd]}
        connections, rechecks = proxy.connections, proxy.asked["lock_recheck"]
        await until(lambda: proxy.asked["lock_recheck"] > rechecks)
        await asyncio.sleep(1)
        assert proxy.connections - connections <= MOST_A_SECOND
        assert proxy.asked["lock_recheck"] - rechecks <= MOST_A_SECOND
        proxy.instead = {}
        await held.release()
        async with asyncio.timeout(5):
            await (await waiting).release()


@pytest.mark.parametrize("odd", ODD)
async def test_replicas_that_are_counted_oddly_are_redis_pys_error(one_server: RedisServer, odd: str) -> None:
    async with odd_answers(one_server) as (proxy, client):
        for command in ("ROLE",) if odd == "zero" else ("WAIT", "ROLE"):
            proxy.instead = {command: ODD[odd]}
            lock = Lock(client, "odd", replicas="all" if command == "ROLE" else 1, ttl=2)
            error = await _error_of(lock.try_acquire)
            assert isinstance(error, RedisError), (command, error)


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_answer_to_the_greeting_is_redis_pys_error(one_server: RedisServer, odd: str) -> None:
    async with odd_answers(one_server, protocol=3) as (proxy, client):
        proxy.instead = {"HELLO": ODD[odd]}
        error = await _error_of(Lock(client, "odd").try_acquire)
        assert error is None or isinstance(error, RedisConnectionError), error
        if error is None:
            await Lock(client, "odd").revoke(force=True)


async def test_no_token_is_named_in_what_is_said_of_an_odd_answer(one_server: RedisServer) -> None:
    async with odd_answers(one_server) as (proxy, client):
        lease = await Lock(client, "odd").acquire()
        token = lease.token.encode()
        text = b"?" + token  # a text that begins with R is the reason of a revocation, and a token can
        proxy.instead = {"lock_renew": b"$%d\r\n%s\r\n" % (len(text), text)}
        error = await _error_of(lease.renew)
        proxy.instead = {}
        assert error is not None
        while error is not None:
            assert token.decode() not in repr(error)
            error = error.__cause__ or error.__context__
        await lease.release()
