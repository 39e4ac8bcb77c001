"""What is tried first by those who come from elsewhere works, or is answered by an error that names what to use."""

import ast
import asyncio
import copy
import importlib.util
import inspect
import re
import types
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import HierarchicalLock, Lease, Lock, LockManager, MultiLock, Redlock, RLock, RWLock, Semaphore, Versioned
from aiolocks._core import hints
from aiolocks.testing import ScriptedGrantor
from tests.support.cases import one_by_one
from tests.support.kinds import KINDS, complete, kinds_where
from tests.support.primitives import NO_SERVER

WORKS = ""
OWN = "Python says it in its own words"

INSTINCT = {
    # asyncio
    "async with lock: pass": WORKS, "async with lock.acquire(timeout=5): pass": WORKS,
    "await lock.acquire(); await lock.release()": WORKS,
    "await (await asyncio.wait_for(lock.acquire(), 5)).release()": WORKS, "assert not await lock.locked()": WORKS,
    "async with lock(timeout=5): pass": "async with lock.hold(timeout=5):",
    "async with lock.hold(5): pass": "hold(timeout=5)", "await lock.acquire(5)": "acquire(timeout=5)",
    "await lock.acquire(False)": "try_acquire()", "await lock.acquire(True, 5)": "acquire(timeout=5)",
    "await lock.acquire(blocking=False)": "try_acquire()", "await semaphore.acquire(3)": "acquire(permits=3)",
    "await semaphore.release(3)": OWN, "Semaphore(3)": 'Semaphore(redis, "scraper", 10',
    "Semaphore(redis, 'scraper', value=3)": "use limit=", "Semaphore(redis, 'scraper', capacity=3)": "use limit=",
    "aiolocks.BoundedSemaphore": "use Semaphore",
    "aiolocks.SyncLock": "for threads and code without await, import aiolocks.sync",
    "with lock: pass": "<Lock 'orders'> is entered by `async with`, not by `with`; threads use aiolocks.sync",
    "with lease: pass": "is entered by `async with`", "with locks: pass": "is entered by `async with`",
    "with rw.read: pass": "<RWLock 'catalogue' read> is entered by `async with`",
    "with rw: pass": "enter its .read, .write or .upgradeable", "with tree: pass": "enter its .read or .write",
    "with semaphore.hold(permits=2): pass": "async with lock.hold(timeout=5)",
    "await lock.hold()": "async with lock.hold(timeout=5)",
    "await asyncio.wait_for(lock.hold(), 5)": "lease = await lock.acquire(timeout=5)",
    "lock.acquire().fencing_token": "must be awaited",
    "if lock.try_acquire(): pass": "if lease := await lock.try_acquire():",
    "if not lock.locked(): pass": "if await lock.locked():", "with lock.acquire(): pass": "async with lock.acquire():",
    "async with lock.try_acquire(): pass": "if lease := await lock.try_acquire():",
    # redis-py
    "async with Lock(redis, 'orders', timeout=10): pass": "ttl= for how long",
    "async with locks.lock('orders', blocking_timeout=5): pass": "use acquire_timeout=",
    "Lock(redis, 'orders', 10)": "ttl= for how long", "Lock(redis, 'orders', sleep=0.1)": "waiters are woken",
    "Lock(redis, 'orders', thread_local=False)": "needs none", "await lock.acquire(blocking_timeout=5)": "use timeout=",
    "await lock.acquire(token='mine')": "a random token of its own", "await lock.extend(60)": "await lease.renew(60)",
    "await lock.reacquire()": "await lease.renew(60)", "await lock.owned()": "lease.held",
    "lock.local.token": "lease.token", "await lease.extend(60)": "await lease.renew(60)",
    "aiolocks.RedisLock": "aiolocks.compat.RedisLock", "aiolocks.LockNotOwnedError": "use LeaseLostError",
    # redlock-py and aioredlock
    "Redlock([redis]).lock('orders', 1000)": "Redlock([redis_a, redis_b, redis_c],",
    "Redlock([redis], 'orders', retry_count=3)": "use acquire_timeout=",
    "Redlock([redis], 'orders', tolerance=3)": "its options are ttl,", "lease.validity": "lease.remaining()",
    "lease.resource": "lease.name", "await locks.unlock(lease)": "await lease.release()",
    "await locks.is_locked('orders')": "await locks.lock(name).locked()",
    "locks.lock('orders', lock_timeout=10)": "use ttl=", "locks.lock('orders', 1000)": OWN,
    # pottery and python-redis-lock
    "Redlock(key='orders', masters={redis})": "Redlock([redis_a, redis_b, redis_c],",
    "Lock(redis, 'orders', auto_release_time=10)": "use ttl=",
    "Lock(redis, 'orders', expire=60, auto_renewal=True)": "use ttl=", "aiolocks.synchronize": "use with_lock",
    "lock.reset()": "await lock.revoke()",
    # Redisson
    "lock.tryLock()": "await lock.try_acquire()", "lock.isHeldByCurrentThread()": "lease.held",
    "lock.forceUnlock()": "await lock.revoke()", "async with rw.readLock(): pass": "async with rw.read:",
    "async with rw.read(): pass": "async with rwlock.read:", "await rw.acquire()": "await rw.read.acquire()",
    "locks.getReadWriteLock('orders')": "use locks.rwlock(name)",
    "await semaphore.availablePermits()": "await semaphore.statistics()",
    "await semaphore.trySetPermits(5)": "await semaphore.resize(n)", "aiolocks.ReadWriteLock": "use RWLock",
    "Lock(redis, 'orders', leaseTime=10)": "use ttl=", "aiolocks.CountDownLatch": OWN,
    "from aiolocks import FairLock": OWN,
    # ShedLock
    "Lock(redis, 'orders', lockAtMostFor=60)": "use ttl=", "Lock(redis, 'orders', lockAtLeastFor=60)": "use min_hold=",
    "lock.locked_by": "await lock.holders()",
    # anyio
    "assert (await lock.statistics()).waiting == 0": WORKS,
    "await semaphore.acquire_nowait()": "await lock.try_acquire()", "semaphore.value": "now.limit - now.permits",
    "semaphore.total_tokens": "await semaphore.resize(n)",
    "semaphore.borrowed_tokens": "(await semaphore.statistics()).permits", "aiolocks.CapacityLimiter": "use Semaphore",
    "aiolocks.WouldBlock": "try_acquire() returns None",
    # anywhere
    "Lock(redis, 'orders', queue_limit=20)": "use max_waiting=",
    "await lock.acquire(queue_limit=20)": "use max_waiting=",
    "await lock.try_acquire(max_waiting=20)": "acquire(max_waiting=20) waits unless so many wait already",
    "Redlock([redis], 'orders', max_waiting=20)": "its callers wait in no queue",
    "lock.info": "await lock.statistics()", "lock.owner": "await lock.holders()",
    "lock.force_release()": "await lock.revoke()", "lease.expires_at": "lease.remaining()", "lease.key": "lease.token",
    "aiolocks.LockLost": "use LeaseLostError", "locks.rw_lock('orders')": "use locks.rwlock(name)",
    "Lock('orders')": 'Lock(redis, "orders:42"',
    "Redlock([redis], 'orders', replicas=1)": "its servers are independent",
    "MultiLock(redis, [semaphore, lock])": "`async with first, second:`",
    "MultiLock(redis, iter([rw.read]))": "such as this RWLockMode",
    "MultiLock(redis, lock)": "`async with first, second:`", "locks.multilock([rw])": "`async with first, second:`",
    "Lock(redis, 'orders', on_lost=print)": "aiolocks.events.on_event(function)",
    "LockManager(redis, on_lost=print)": "await lease.wait_lost()",
    "@aiolocks.with_lock\nasync def work(): pass": '@with_lock(redis, "invoice:{invoice_id}")',
    "@aiolocks.with_lock()\nasync def work(): pass": '@with_lock(redis, "invoice:{invoice_id}")',
    "@aiolocks.with_lock(redis)\nasync def work(): pass": '@with_lock(redis, "invoice:{invoice_id}")',
}  # fmt: skip
"""What is tried, by where it comes from, and what the answer shows."""


def names_around(client: Redis) -> dict[str, Any]:
    return {
        "aiolocks": aiolocks, "asyncio": asyncio, "redis": client, "locks": LockManager(client),
        "lock": Lock(client, "orders"), "semaphore": Semaphore(client, "scraper", 3), "rw": RWLock(client, "catalogue"),
        "tree": HierarchicalLock(client, "shop/orders"), "Lock": Lock, "LockManager": LockManager,
        "MultiLock": MultiLock, "Redlock": Redlock, "Semaphore": Semaphore,
    }  # fmt: skip


def tried(code: str, names: dict[str, Any]) -> Coroutine[Any, Any, None]:
    """Return what runs *code*, which may await, with *names*."""
    compiled = compile(code, "<tried>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run() -> None:
        running = eval(compiled, dict(names))
        if running is not None:
            await running

    return run()


async def a_lease() -> Lease:
    return await ScriptedGrantor().acquire()


def answered(code: str, **more: Any) -> str:

    async def answer() -> str:
        names = {**names_around(NO_SERVER), "lease": await a_lease() if "lease" in code else None, **more}
        with pytest.raises((TypeError, AttributeError, ImportError)) as caught:
            await tried(code, names)
        text = f"{caught.type.__name__}: {caught.value}"
        del caught  # its traceback refers to this frame, and to coroutines that are never awaited
        return text

    return asyncio.run(answer())


@one_by_one("code, shown", [row for row in INSTINCT.items() if row[1] != WORKS])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_what_does_not_exist_names_what_does_and_the_rest_is_an_error_all_the_same(code: str, shown: str) -> None:
    answer = answered(code)
    assert answer.startswith("ImportError") == code.startswith("from ") if shown == OWN else shown in answer


async def test_what_works_elsewhere_works(client: Redis, quick_sessions: None) -> None:
    for code, shown in INSTINCT.items():
        if shown == WORKS:
            await tried(code, names_around(client))


@one_by_one("kind, name, offered", complete({
    "lock": (Lock, "orders", {"replicas", "track"}), "rlock": (RLock, "orders", {"replicas", "track"}),
    "rwlock": (RWLock, "orders", {"replicas", "track"}), "multilock": (MultiLock, ["orders"], {"replicas", "track"}),
    "hierarchy": (HierarchicalLock, "shop/orders", {"replicas"}), "redlock": (Redlock, "orders", set()),
    "semaphore": (Semaphore, "scraper", {"limit", "replicas"}),
}, kinds_where()).values())  # fmt: skip
def test_a_class_offers_its_own_options_and_no_others(kind: Any, name: object, offered: set[str]) -> None:
    with pytest.raises(TypeError, match="tll") as caught:
        kind([NO_SERVER] if kind is Redlock else NO_SERVER, name, tll=5)
    listed = str(caught.value).partition("its options are ")[2].split(", ")
    assert listed == [option for option in inspect.signature(kind).parameters if option in listed]
    assert {"limit", "replicas", "track"} & set(listed) == offered
    assert {"ttl", "acquire_timeout", "prefix"} <= set(listed)


@one_by_one("call, shown", [
    ("lock.hold(colour=1)", "it takes timeout="), ("semaphore.acquire(colour=1)", "it takes permits= and timeout="),
    ("lock.try_acquire(colour=1)", "it takes no keyword"),
    ("lock.try_acquire(timeout=1)", "use acquire(timeout=5) to wait"), ("semaphore.acquire(count=3)", "use permits="),
    ("lock.acquire(permits=3)", "use a Semaphore"),
    ("lock.acquire(lock_timeout=3)", "options such as ttl= belong to the constructor"),
    ("lock.acquire(None)", "acquire(timeout=5) waits for at most 5 seconds"),
    ("lock.acquire(True)", "try_acquire() asks once"), ("lock.hold(timedelta(seconds=5))", "hold(timeout=5)"),
    ("semaphore.acquire(2.5)", "acquire(permits=3, timeout=5)"), ("semaphore.try_acquire(3)", "try_acquire(permits=3)"),
    ("lock.try_acquire(3)", "acquire(timeout=5)"),
    ("rw.write.hold(5)", "RWLock.write.hold() takes keywords only: hold(timeout=5)"),
    ("await lock.revoke(5)", "Lock.revoke() takes keywords only: revoke(timeout=5) waits for at most 5 seconds"),
    ("semaphore(permits=3)", "semaphore.hold(permits=3, timeout=5)"),
])  # fmt: skip
def test_a_wrong_call_is_told_the_keywords_that_this_one_takes(call: str, shown: str) -> None:
    answer = answered(call, timedelta=timedelta)
    assert answer.startswith("TypeError")
    assert shown in answer


def test_a_misplaced_argument_is_not_shown_as_it_may_be_a_token() -> None:
    lock: Any = Lock(NO_SERVER, "orders")
    with pytest.raises(TypeError) as caught:
        lock.acquire("a token")
    assert "a token" not in str(caught.value)
    with pytest.raises(TypeError, match=r"^ttl must be a number"):  # from within a correct call
        Lock(NO_SERVER, "orders", ttl=None)  # type: ignore[arg-type]


THINGS: list[Any] = [
    LockManager(NO_SERVER), HierarchicalLock(NO_SERVER, "shop/orders").read, RWLock(NO_SERVER, "orders").write,
    aiolocks.Election(NO_SERVER, "scheduler"), aiolocks.Once(NO_SERVER, "rates", keep=1),
    *complete({
        "hierarchy": HierarchicalLock(NO_SERVER, "shop/orders"), "lock": Lock(NO_SERVER, "orders"),
        "multilock": MultiLock(NO_SERVER, ["orders"]), "redlock": Redlock([NO_SERVER], "orders"),
        "rlock": RLock(NO_SERVER, "orders"), "rwlock": RWLock(NO_SERVER, "orders"),
        "semaphore": Semaphore(NO_SERVER, "orders", 3), "versioned": Versioned(NO_SERVER, "stock"),
    }, [kind.name for kind in KINDS]).values(),
]  # fmt: skip


@one_by_one("thing", [*THINGS, aiolocks])
def test_an_unknown_name_is_pythons_own_error(thing: object) -> None:
    kind = "module 'aiolocks'" if thing is aiolocks else f"{type(thing).__name__!r} object"
    for name in ("colour", "_extend", "__extend__"):
        with pytest.raises(AttributeError, match=f"^{kind} has no attribute {name!r}$") as caught:
            getattr(thing, name)
        assert (caught.value.name, caught.value.obj) == (name, thing)
    with pytest.raises(ImportError, match=r"cannot import name 'colour' from 'aiolocks' \(.*__init__.py\)"):
        exec("from aiolocks import colour")


@one_by_one("thing", [*THINGS, aiolocks])
def test_a_name_of_another_library_is_no_attribute(thing: object) -> None:
    table = hints._PACKAGE if thing is aiolocks else hints._TABLES.get(type(thing).__name__, {"extend": ""})
    missing = next(name for name in table if name not in dir(thing))
    assert not hasattr(thing, missing)
    assert getattr(thing, missing, None) is None
    with pytest.raises(AttributeError, match=f"no attribute '{missing}': ") as caught:
        getattr(thing, missing)
    assert (caught.value.name, caught.value.obj) == (missing, thing)
    assert missing not in dir(type(thing))
    assert missing not in dict(inspect.getmembers(thing))
    if thing is not aiolocks:
        kind = type(thing)
        assert missing not in dict(inspect.getmembers(kind))
        with pytest.raises(AttributeError, match=f"^type object '{kind.__name__}' has no attribute '{missing}': "):
            getattr(kind, missing)


def test_a_subclass_may_have_an_attribute_of_such_a_name_and_a_property_raises_its_own_error() -> None:
    class Own(hints.NameHints):
        extend = 1

        @property
        def token(self) -> str:
            raise AttributeError("the property's own")

    class Mixin:
        def close(self) -> int:
            return 3

    class Both(Own, Mixin): ...

    assert Both().close() == 3
    own: Any = Own()
    own.owner = 2
    assert (own.extend, own.owner) == (1, 2)
    assert {"extend", "owner"} <= set(dir(own))
    assert not hasattr(own, "unlock")
    with pytest.raises(AttributeError, match=r"^the property's own$"):
        _ = own.token


@one_by_one("name, shown", [("validity", "lease.remaining()"), ("colour", "'colour'"), ("_state_", "'_state_'")])
def test_an_unknown_attribute_of_a_lease_is_an_error_that_says_what_to_use(name: str, shown: str) -> None:
    async def asked() -> None:
        lease = await a_lease()
        assert not hasattr(lease, name)
        with pytest.raises(AttributeError, match=re.escape(shown)) as caught:
            getattr(lease, name)
        assert (caught.value.name, caught.value.obj) == (name, lease)
        await lease.release()

    asyncio.run(asked())


def test_a_half_made_object_says_what_it_lacks() -> None:
    for kind in (Lock, Lease, LockManager, Versioned):
        with pytest.raises(AttributeError, match="no attribute '_state_'"):
            kind.__new__(kind)._state_  # type: ignore[attr-defined]  # noqa: B018


@one_by_one("thing", [thing for thing in THINGS if not isinstance(thing, Redlock)])
def test_a_primitive_can_be_copied(thing: Any) -> None:
    assert repr(copy.copy(thing)) == repr(thing)
    assert type(copy.copy(thing)) is type(thing)


@one_by_one("kind", [Lock, Semaphore, RWLock, Lease, LockManager, Versioned, aiolocks.Election, aiolocks.Once])
def test_a_mock_has_what_there_is_and_nothing_else(kind: type) -> None:
    for mock in (Mock(spec=kind), create_autospec(kind, instance=True)):
        public = {name for name in dir(kind) if not name.startswith("_")}
        assert all(hasattr(mock, name) for name in public)
        with pytest.raises(AttributeError):
            _ = mock.extend
        with pytest.raises(AttributeError):
            _ = mock.colour


def test_the_package_offers_what_it_did() -> None:
    assert set(aiolocks.__all__) <= set(dir(aiolocks))
    assert not {"ReadWriteLock", "LockLost"} & set(dir(aiolocks))
    assert not hasattr(aiolocks, "ReadWriteLock")
    assert importlib.import_module("aiolocks.testing") is aiolocks.testing  # type: ignore[attr-defined,unused-ignore]
    scope: dict[str, object] = {}
    exec("from aiolocks import *", scope)
    assert set(aiolocks.__all__) <= scope.keys()
    assert isinstance(scope["Lock"], type)
    assert isinstance(aiolocks, types.ModuleType)


@one_by_one("module", ["aiohttp", "compat", "events", "fastapi", "sync", "testing"])
def test_a_module_that_was_not_imported_says_how(module: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{module}': import aiolocks\.{module}$"):
        hints.missing_from_package(module)  # which others may have imported by now
    assert importlib.util.find_spec(f"aiolocks.{module}")


OURS: dict[str, list[type]] = {
    "lock": [Lock, HierarchicalLock], "lease": [Lease], "semaphore": [Semaphore], "rw": [RWLock],
    "locks": [LockManager], "versioned": [Versioned],
}  # fmt: skip


def test_every_answer_names_what_exists() -> None:
    tables = [hints._LOCK, *hints._TABLES.values(), hints._PACKAGE]
    shown = {hint for table in tables for hint in table.values()}
    instances = {type(thing): thing for thing in THINGS}
    named = [
        found for hint in shown for found in re.findall(r"\b(lock|lease|semaphore|rw|locks|versioned)\.(\w+)", hint)
    ]
    assert len(named) > 50
    for thing, name in named:
        assert any(hasattr(instances.get(kind, kind), name) for kind in OURS[thing]), (thing, name)
    for hint in shown:
        for name in re.findall(r"use ([A-Z]\w+)", hint):
            assert name in aiolocks.__all__, hint
