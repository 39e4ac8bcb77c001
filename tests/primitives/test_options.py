"""What may be asked for: wrong options are errors at construction, before any I/O; names of any shape stay apart."""

import asyncio
import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast
from unittest.mock import create_autospec

import pytest
import redis as redis_sync
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import Sentinel

import aiolocks
from aiolocks import AcquireTimeoutError, Lock, LockManager, Redlock, RWLock, Semaphore, Versioned
from tests.support.cases import one_by_one
from tests.support.clients import client_at
from tests.support.kinds import KINDS, Kind, complete
from tests.support.primitives import EVERY_ROW, NO_SERVER, ROWS, Make, Row, as_a_stranger, enter, every_row

Constructor = Callable[..., object]

LEASED = [kind for kind in KINDS if kind.leased]

ARGUMENTS: dict[str, tuple[Any, ...]] = complete({
    "hierarchy": ("a/b",), "lock": ("a",), "multilock": (["a"],), "redlock": ("a",), "rlock": ("a",), "rwlock": ("a",),
    "semaphore": ("a", 1), "versioned": ("a",),
}, [kind.name for kind in KINDS])  # fmt: skip
"""What a constructor takes behind the client, by kind."""


def class_of(kind: Kind) -> Any:
    return getattr(aiolocks, kind.class_name)


def constructor(kind: Kind) -> Constructor:
    return partial(class_of(kind), [NO_SERVER] if kind.quorum else NO_SERVER, *ARGUMENTS[kind.name])


CONSTRUCTORS: dict[str, Constructor] = {
    **{kind.class_name: constructor(kind) for kind in LEASED},
    "LockManager": partial(LockManager, NO_SERVER),
    **{
        f"locks.{kind.method}": partial(getattr(LockManager(NO_SERVER), kind.method), *ARGUMENTS[kind.name])
        for kind in LEASED
        if kind.method
    },
    "from_url": partial(LockManager.from_url, "redis://localhost:1"),
}

every_constructor = pytest.mark.parametrize("construct", CONSTRUCTORS.values(), ids=CONSTRUCTORS)

NOT_SECONDS: list[object] = ["1", b"1", [], True, 1j, timedelta]
OUT_OF_RANGE: list[object] = [
    -1, -0.001, math.nan, math.inf, -math.inf, 10**400, timedelta(days=-1), timedelta(microseconds=-1), timedelta.min,
]  # fmt: skip

BAD_OPTIONS: list[tuple[str, object, type[Exception]]] = [
    *[("ttl", value, TypeError) for value in [None, *NOT_SECONDS]],
    *[("ttl", value, ValueError) for value in [0, 0.099, 10**9 + 1, 1e10, timedelta(0), timedelta.max, *OUT_OF_RANGE]],
    *[("acquire_timeout", value, TypeError) for value in NOT_SECONDS],
    *[("acquire_timeout", value, ValueError) for value in OUT_OF_RANGE],
    *[("max_hold", value, TypeError) for value in NOT_SECONDS],
    *[("max_hold", value, ValueError) for value in [0, timedelta(0), *OUT_OF_RANGE]],
    *[("max_stall", value, TypeError) for value in [None, *NOT_SECONDS]],
    *[("max_stall", value, ValueError) for value in [0, timedelta(0), *OUT_OF_RANGE]],
    *[("on_lost", value, ValueError) for value in ["raise", "", None, True]],
    *[("on_lost", value, TypeError) for value in [print, lambda lease: None]],
    *[("renew", value, TypeError) for value in [None, 1, 0, "yes"]],
    *[("wait_release", value, TypeError) for value in [None, 1, 0, "no"]],
    *[("track", value, TypeError) for value in [None, 1, 0, "yes"]],
    *[("min_uptime", value, TypeError) for value in [None, *NOT_SECONDS]],
    *[("min_uptime", value, ValueError) for value in [10**9 + 1, timedelta.max, *OUT_OF_RANGE]],
    *[("min_hold", value, TypeError) for value in [None, False, *NOT_SECONDS]],
    *[("min_hold", value, ValueError) for value in [10**9 + 1, timedelta.max, *OUT_OF_RANGE]],
    *[("max_waiting", value, TypeError) for value in ["1", 1.0, True, timedelta(1), []]],
    *[("note", value, TypeError) for value in [1, b"a", True, ["a"]]],
    ("note", "a" * 201, ValueError),
    *[("watchdog", value, ValueError) for value in ["process", "", None, True]],
    *[("prefix", value, TypeError) for value in [None, b"app:", 1]],
    *[("prefix", value, ValueError) for value in ["{app}:", "app}", "app{", "\ud800"]],
]

INSTEAD = {
    "timeout": ["ttl", "acquire_timeout"], "blocking_timeout": ["acquire_timeout"], "blocking": ["try_acquire"],
    "sleep": ["needs none"], "thread_local": ["needs none"], "colour": ["its options are"],
}  # fmt: skip

BAD_NAMES: list[tuple[object, type[Exception]]] = [
    ("", ValueError), ("n" * 1025, ValueError), ("é" * 513, ValueError), ("\ud800", ValueError),
    *[(value, TypeError) for value in [None, b"orders", 42, ["orders"]]],
]  # fmt: skip


@every_constructor
@one_by_one("option, value, error", BAD_OPTIONS)
def test_a_bad_value_of_an_option_is_an_error_that_names_it(
    construct: Constructor, option: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=option):
        construct(**{option: value})


@every_constructor
@one_by_one("keyword", INSTEAD)
def test_a_keyword_of_redis_py_or_an_unknown_one_is_told_what_to_use(construct: Constructor, keyword: str) -> None:
    with pytest.raises(TypeError, match=keyword) as caught:
        construct(**{keyword: 1})
    assert all(instead in str(caught.value) for instead in INSTEAD[keyword])


@every_constructor
def test_the_widest_values_are_fine(construct: Constructor) -> None:
    construct(
        ttl=0.1, acquire_timeout=0, max_hold=0.001, prefix="", on_lost="flag", renew=False, min_uptime=0, min_hold=0
    )
    for option, widest, too_wide in (("ttl", 0.1, 0.0999), ("ttl", 10**9, 10**9 + 1e-6), ("min_hold", 0, -1e-9)):
        construct(**{option: widest})
        with pytest.raises(ValueError, match=option):
            construct(**{option: too_wide})
    construct(ttl=10**9, min_uptime=10**9, min_hold=10**9, acquire_timeout=None, max_hold=None, prefix="app:")
    second, longest = timedelta(seconds=1), timedelta.max
    construct(ttl=second, min_uptime=second, min_hold=second)
    construct(acquire_timeout=longest, max_hold=longest, max_stall=longest)


DEFAULTS = {
    "ttl": 30.0, "acquire_timeout": None, "on_lost": "cancel", "renew": True, "max_hold": None, "watchdog": "task",
    "max_stall": 60.0, "replicas": 0, "wait_release": True, "min_uptime": 0.0, "min_hold": 0.0, "track": False,
    "max_waiting": None, "note": None,
}  # fmt: skip


@every_row
async def test_a_call_waits_and_a_lease_is_renewed_for_a_timedelta(make: Make) -> None:
    leases = await make.fill()
    other: Any = make()
    async with asyncio.timeout(5):
        for wait, given, seconds in [
            (other.acquire, timedelta(milliseconds=300), 0.3),
            (lambda timeout: enter(other.hold(timeout=timeout)), timedelta(0), 0.0),
            (lambda timeout: enter(make(acquire_timeout=timeout)), timedelta(milliseconds=300), 0.3),
        ]:
            with pytest.raises(AcquireTimeoutError) as caught:
                await as_a_stranger(wait(timeout=given))
            assert (caught.value.timeout, type(caught.value.timeout)) == (seconds, float)
    for lease in leases:
        assert await lease.renew(timedelta(minutes=1))
        assert 50 < lease.remaining() < 60
        await lease.release()


async def test_an_upgrade_waits_and_a_value_lasts_for_a_timedelta(client: Redis, quick_sessions: None) -> None:
    rw, stock = RWLock(client, "catalogue"), Versioned(client, "stock:42", expire=timedelta(minutes=1))
    reader = await rw.read.acquire()
    async with rw.upgradeable as lease:
        for bad in (timedelta(-1), math.nan, True):
            with pytest.raises((TypeError, ValueError), match="timeout"):
                lease.upgrade(timeout=bad)
        with pytest.raises(AcquireTimeoutError):
            async with asyncio.timeout(5), lease.upgrade(timeout=timedelta(milliseconds=300)):
                pass
    await reader.release()
    await stock.update(lambda _: b"17")
    assert 50_000 < await client.pttl("stock:42") <= 60_000
    await client.delete("stock:42")


@pytest.mark.parametrize("row", ROWS, ids=str)
@one_by_one("name, error", BAD_NAMES)
def test_a_bad_name_is_an_error(row: Row, name: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="name"):
        row.make(NO_SERVER, name)


@one_by_one("client", [None, "redis://localhost", NO_SERVER.connection_pool, NO_SERVER.pipeline(), redis_sync.Redis()])
def test_what_is_no_client_is_an_error_that_names_the_right_module(client: Any) -> None:
    constructors: list[Constructor] = [LockManager, *(partial(row.make, name="orders") for row in ROWS)]
    for construct in constructors:
        with pytest.raises(TypeError, match=r"redis\.asyncio"):
            construct(client)


def test_what_is_mistaken_for_a_client_is_an_error_that_says_what_to_do() -> None:
    of_names = [kind for kind in KINDS if ARGUMENTS[kind.name] in [("a",), (["a"],), ("a/b",)] if not kind.quorum]
    mistakes: list[tuple[object, str]] = [
        ("orders", "client goes first, then the name"), (["orders"], "client goes first, then the name"),
        ("redis://:secret@localhost", "LockManager.from_url"), (LockManager(NO_SERVER), r"manager\.lock\("),
        (Redis, "not the class"), (redis_sync.Redis, r"redis\.asyncio\.Redis\(\), not the class"),
        ([NO_SERVER], "only a Redlock has several"),
    ]  # fmt: skip
    for primitive in map(class_of, of_names):
        for wrong, says in mistakes:
            with pytest.raises(TypeError, match=says) as caught:
                primitive(wrong, NO_SERVER)
            assert "secret" not in str(caught.value)


@one_by_one("row", ROWS)
def test_a_bad_timeout_of_a_block_is_an_error_before_it_is_entered(row: Row) -> None:
    for value in ("1", True):
        with pytest.raises(TypeError, match="timeout"):
            row.make(NO_SERVER, "orders").hold(timeout=value)  # type: ignore[arg-type]
    for bad in OUT_OF_RANGE:
        with pytest.raises(ValueError, match="timeout"):
            row.make(NO_SERVER, "orders").hold(timeout=cast("float", bad))


@pytest.mark.parametrize("row", ROWS, ids=str)
@one_by_one("verb", ["__aenter__", "acquire", "try_acquire", "release", "locked", "statistics"])
def test_without_an_asyncio_loop_every_verb_is_an_error_that_names_asyncio(row: Row, verb: str) -> None:
    """Under trio there is none either."""
    call = getattr(row.make(NO_SERVER, "orders"), verb)
    with pytest.raises(RuntimeError, match="asyncio"):
        call().send(None)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_one_object_serves_one_event_loop_after_another(row: Row, redis_url: str) -> None:
    lock = row.make(client_at(redis_url), "orders")

    async def use() -> int:
        async with lock as lease:
            return lease.fencing_token

    assert asyncio.run(use()) < asyncio.run(use())


async def test_bad_arguments_of_calls_are_errors_before_any_request() -> None:
    semaphore = Semaphore(NO_SERVER, "orders", 3)
    for call in (
        semaphore.acquire(timeout=-1), semaphore.acquire(timeout=timedelta(seconds=-1)), semaphore.acquire(permits=0),
        semaphore.try_acquire(permits=0), semaphore.resize(0),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            await call


async def test_a_bad_ttl_of_a_renewal_is_an_error_and_changes_nothing(make: Make) -> None:
    async with make(ttl=5) as lease:
        for bad in (0, 0.099, timedelta(0), timedelta.max, *OUT_OF_RANGE):
            with pytest.raises(ValueError, match="ttl"):
                await lease.renew(cast("float", bad))
        assert 4 < lease.remaining() < 5


@one_by_one("kind", LEASED)
def test_a_constructor_shows_its_own_keywords_and_no_others(kind: Kind) -> None:
    """What explains a wrong one is not among what a hover, help() and inspect show."""
    primitive = class_of(kind)
    shown = inspect.signature(primitive).parameters
    keywords = {name for name, one in shown.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    expected = DEFAULTS.keys() | {"prefix"}
    has = {"replicas": kind.replicated, "track": kind.tracked, "max_waiting": kind.queued}
    without = {option for option in has if not has[option]}
    assert keywords == expected - without
    for name in keywords - {"prefix"}:
        assert shown[name].default == DEFAULTS[name], name
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in shown.values())


def test_a_ttl_that_looks_like_milliseconds_is_logged_once_in_a_process() -> None:
    program = """
import logging
from datetime import timedelta
from functools import partial
from redis.asyncio import Redis
from aiolocks import Lock, LockManager
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
redis = Redis()
for ttl in (3599, 3601, 3600.0, 30000.0, 90000.5, timedelta(hours=10)):
    Lock(redis, "orders", ttl=ttl)
Lock(redis, "orders", acquire_timeout=30000, max_hold=30000, min_hold=30000)
for name in ("orders", "invoices"):
    Lock(redis, name, ttl=30000)
LockManager(redis, ttl=60000).semaphore("scraper", 3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr.splitlines() == [
        "WARNING aiolocks ttl=30000 lasts 8.3 hours, as ttl is in seconds; if milliseconds are meant, use ttl=30"
    ]


@one_by_one("row", ROWS)
def test_calls_show_their_own_keywords_and_are_mocked_as_what_is_awaited(row: Row) -> None:
    lock: Any = row.make(NO_SERVER, "orders")
    permits = {"permits"} if isinstance(lock, Semaphore) else set()
    assert inspect.signature(lock.hold).parameters.keys() == {"timeout", "max_waiting"} | permits
    assert inspect.signature(lock.acquire).parameters.keys() == {"timeout", "max_waiting"} | permits
    assert inspect.signature(lock.try_acquire).parameters.keys() == permits
    mock: Any = create_autospec(type(lock), instance=True)
    for verb in ("try_acquire", "release", "locked", "statistics"):
        assert inspect.iscoroutinefunction(getattr(mock, verb)), verb


def test_a_wrong_keyword_is_explained_before_a_missing_argument() -> None:
    kind: Any = Semaphore
    with pytest.raises(TypeError, match="use ttl="):
        kind(NO_SERVER, "scraper", expire=5)
    with pytest.raises(
        TypeError,
        match=r"RWLock\.read\.hold\(\) has no 'ttl': it takes timeout= and max_waiting=; options such as ttl= belong",
    ):
        cast("Any", RWLock(NO_SERVER, "catalogue").read).hold(ttl=5)


_sentinel: Any = Sentinel
BEHIND_SENTINEL: Redis = _sentinel([("localhost", 1)]).master_for("primary")
ON_A_CLUSTER: Any = RedisCluster(host="localhost", port=1)


@one_by_one(
    "client, says",
    [(LockManager.from_url("memory://").client, "memory://"), (BEHIND_SENTINEL, "Sentinel"), (ON_A_CLUSTER, "Cluster")],
)
def test_where_an_uptime_says_nothing_none_is_asked_for(client: Any, says: str) -> None:
    """A server in memory begins with its process; where a replica takes over, that may have been up for long."""
    constructors: list[Constructor] = [partial(row.make, client) for row in EVERY_ROW]
    for construct in [*constructors, cast("Constructor", partial(Redlock, [NO_SERVER, client]))]:
        with pytest.raises(ValueError, match=rf"min_uptime.* {says}"):
            construct("orders", min_uptime=1)
        construct("orders", min_uptime=0)


def test_replicas_is_a_whole_number_or_a_word_for_one() -> None:
    for right in (0, 3, "majority", "all"):
        Lock(NO_SERVER, "orders", replicas=cast("int", right))
    for wrong, error in [(-1, ValueError), ("most", ValueError), (None, TypeError), (1.0, TypeError)]:
        with pytest.raises(error, match="replicas"):
            Lock(NO_SERVER, "orders", replicas=cast("int", wrong))
