"""Each private name of asyncio, anyio, redis-py and others that the package uses is there, and stands in one table.

A new version of a library can rename such a name without notice. This test then fails before any lock does, and says
what is used where.
"""

import argparse
import ast
import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
import pytest_asyncio
from aiohttp.web_protocol import RequestHandler
from redis.asyncio import Redis, Sentinel

import aiolocks
from aiolocks import LockManager

PACKAGE = Path(aiolocks.__file__).parent

DOCUMENTED = {"_asdict", "_exit", "_getframe", "_replace"}
"""Public in spite of their names: those of named tuples, and of `os` and `sys`."""


@dataclass(frozen=True, slots=True)
class Private:
    """A private name of a library: where the package uses it, for what, and whether it is there."""

    name: str
    library: str
    modules: tuple[str, ...]
    use: str
    is_there: Callable[["Met"], bool]

    @property
    def attribute(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        release = sys.version.partition(" ")[0] if self.library == "Python" else version(self.library)
        return f"{self.name} of {self.library} {release}: used in {', '.join(self.modules)} {self.use}"


@dataclass(frozen=True, slots=True)
class Met:
    """Objects as the package meets them."""

    connection: Any
    in_memory: Any
    task: Any
    gathering: Any
    awaited: Any
    scopes: tuple[Any, Any]
    of_scopes: Any

    @property
    def loop(self) -> Any:
        return asyncio.get_running_loop()


def has(*names: str) -> Callable[[object], bool]:
    return lambda thing: all(hasattr(thing, name) for name in names)


def backend() -> Any:
    return sys.modules["anyio._backends._asyncio"]


def has_parents(met: Met) -> bool:
    outer, inner = met.scopes
    state = backend()._task_states.get(met.of_scopes)
    return state.cancel_scope is inner and inner._parent_scope is outer and outer._parent_scope is None


CANCELLATION, CLOCK, CONNECTION = "_engine/cancellation.py", "testing/_clock.py", "_redis/connection.py"
STREAM = "to take over the stream of a connection that redis-py has opened"
WAITS_FOR = "to find the task that a cancellation reaches in the end"
MOVES = "to move the time of a loop in a user's test"
HELPS = "to print the completion of a shell"

TABLE = (
    Private(
        "StreamReader._buffer",
        "Python",
        (CONNECTION,),
        STREAM,
        lambda met: bytes(met.connection._reader._buffer) == b"",
    ),
    Private("Task._must_cancel", "Python", (CANCELLATION,), WAITS_FOR, lambda met: met.task._must_cancel is False),
    Private(
        "Task._fut_waiter", "Python", (CANCELLATION,), WAITS_FOR, lambda met: met.task._fut_waiter is met.gathering
    ),
    Private("Future._children", "Python", (CANCELLATION,), WAITS_FOR, lambda met: len(met.gathering._children) == 1),
    Private(
        "Future._callbacks",
        "Python",
        ("_grantors/introduction.py",),
        "to name the task that waits",
        lambda met: any(getattr(call, "__self__", None) is met.of_scopes for call, _ in met.awaited._callbacks or ()),
    ),
    Private(
        "Task._log_destroy_pending",
        "Python",
        ("_core/background.py",),
        "to print nothing when a loop is closed",
        lambda met: met.task._log_destroy_pending is True,
    ),
    Private(
        "BaseEventLoop._asyncgens_shutdown_called",
        "Python",
        ("_core/background.py",),
        "to see that a loop ends",
        lambda met: met.loop._asyncgens_shutdown_called is False,
    ),
    Private(
        "asyncio.coroutines._is_coroutine",
        "Python",
        ("_core/teaching.py",),
        "to mark coroutine functions before 3.12",
        lambda _: sys.version_info >= (3, 12) or has("_is_coroutine")(asyncio.coroutines),
    ),
    Private("BaseEventLoop._scheduled", "Python", (CLOCK,), MOVES, lambda met: isinstance(met.loop._scheduled, list)),
    Private("BaseEventLoop._ready", "Python", (CLOCK,), MOVES, lambda met: len(met.loop._ready) >= 0),
    Private("BaseEventLoop._clock_resolution", "Python", (CLOCK,), MOVES, lambda met: met.loop._clock_resolution > 0),
    Private(
        "asyncio._get_running_loop", "Python", (CLOCK,), MOVES, lambda met: asyncio._get_running_loop() is met.loop
    ),
    Private(
        "argparse._SubParsersAction",
        "Python",
        ("cli/_arguments.py",),
        "as a type",
        lambda _: has("_SubParsersAction")(argparse),
    ),
    Private(
        "ArgumentParser._actions",
        "Python",
        ("cli/_completion.py",),
        HELPS,
        lambda _: has("_actions")(argparse.ArgumentParser()),
    ),
    Private(
        "Action._get_subactions",
        "Python",
        ("cli/_completion.py",),
        HELPS,
        lambda _: has("_get_subactions")(argparse.ArgumentParser().add_subparsers()),
    ),
    Private(
        "anyio._backends._asyncio",
        "anyio",
        (CANCELLATION,),
        "to find the scopes of a task",
        lambda _: "anyio._backends._asyncio" in sys.modules,
    ),
    Private(
        "anyio._backends._asyncio._task_states", "anyio", (CANCELLATION,), "to find the scopes of a task", has_parents
    ),
    Private("CancelScope._parent_scope", "anyio", (CANCELLATION,), "to find the scopes of a task", has_parents),
    Private("Connection._writer", "redis", (CONNECTION,), STREAM, lambda met: has("transport")(met.connection._writer)),
    Private("Connection._reader", "redis", (CONNECTION,), STREAM, lambda met: has("_buffer")(met.connection._reader)),
    Private(
        "Connection._parser", "redis", (CONNECTION,), STREAM, lambda met: callable(met.connection._parser.parse_error)
    ),
    Private(
        "redis._parsers",
        "redis",
        ("_redis/clients.py",),
        "for its Encoder",
        lambda _: hasattr(importlib.import_module("redis._parsers"), "Encoder"),
    ),
    Private(
        "redis._parsers.base",
        "redis",
        ("_engine/guard.py",),
        "for its BaseParser",
        lambda _: hasattr(importlib.import_module("redis._parsers.base").BaseParser, "parse_error"),
    ),
    Private(
        "SentinelManager._force_master_ip",
        "redis",
        ("_redis/sentinel.py",),
        "to connect to the host that a user demands",
        lambda _: (
            int(version("redis").partition(".")[0]) < 7
            or has("_force_master_ip")(cast("Any", Sentinel)([("localhost", 1)]))
        ),
    ),
    Private(
        "FakeConnection._sock",
        "fakeredis",
        (CONNECTION,),
        "to end a link to the in-memory server",
        lambda met: has("_sock")(met.in_memory),
    ),
    Private(
        "RequestHandler._payload_parser",
        "aiohttp",
        ("aiohttp.py",),
        "to see that a request is a WebSocket",
        lambda _: "_payload_parser" in RequestHandler.__slots__,
    ),
)


@pytest_asyncio.fixture
async def met(redis_url: str) -> AsyncIterator[Met]:
    """Two tasks that wait, one in two scopes and one for `gather`, and a connection of either kind."""
    awaited, never = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
    scopes: list[anyio.CancelScope] = []
    gathering: list[Any] = []

    async def in_scopes() -> None:
        with anyio.CancelScope() as outer, anyio.CancelScope() as inner:
            scopes.extend((outer, inner))
            await awaited

    async def gather() -> None:
        gathering.append(asyncio.gather(never))
        await gathering[0]

    async with Redis.from_url(redis_url) as redis, LockManager.from_url("memory://") as locks:
        pools: list[Any] = [redis.connection_pool, locks.client.connection_pool]  # untyped
        connection, in_memory = [await pool.get_connection() for pool in pools]
        of_scopes, task = asyncio.create_task(in_scopes()), asyncio.create_task(gather())
        await asyncio.sleep(0)
        yield Met(connection, in_memory, task, gathering[0], awaited, (scopes[0], scopes[1]), of_scopes)
        for each in (of_scopes, task):
            each.cancel()
        await asyncio.wait((of_scopes, task))
        for pool, each in zip(pools, (connection, in_memory), strict=True):
            await pool.release(each)


@pytest.mark.redis
@pytest.mark.asyncio
@pytest.mark.parametrize("private", TABLE, ids=lambda private: private.name)
async def test_a_private_name_that_the_package_uses_is_there(private: Private, met: Met) -> None:
    try:
        is_there = private.is_there(met)
    except (AttributeError, ImportError, KeyError) as error:
        pytest.fail(f"{private}: {error}")
    assert is_there, private


def test_the_table_has_every_private_name_that_the_package_uses_and_no_other() -> None:
    table = {(module, private.attribute) for private in TABLE for module in private.modules}
    modules = {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")
    }
    own = {name for tree in modules.values() for name in defined(tree)} - {private.attribute for private in TABLE}
    used = {(module, name) for module, tree in modules.items() for name in foreign(tree, own)}
    assert sorted(used - table) == [], "private names of other libraries: each needs a row that says what it is for"
    assert sorted(table - used) == [], "rows of names that are not used any more"


def private_parts(name: object) -> list[str]:
    """Return the parts of a dotted name that begin with one underscore."""
    words = name.split(".") if isinstance(name, str) else []
    return [word for word in words if word.startswith("_") and word.strip("_") and not word.startswith("__")]


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module of the package defines, as functions, classes, variables or attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def foreign(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yield the private names of others that a module reads, sets or imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                found = []
            case ast.Attribute(attr=name):
                found = private_parts(name)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=name), *_]):
                found = private_parts(name)
            case ast.Subscript(value=ast.Call(func=ast.Name(id="vars")), slice=ast.Constant(value=name)):
                found = private_parts(name)
            case ast.ImportFrom(module=str(name), level=0):
                found = private_parts(name)[-1:] and [name.rpartition(".")[2]]
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=name)]) if "._" in str(name):
                found = private_parts(name)[-1:]  # of `sys.modules`
            case _:
                found = []
        yield from (each for each in found if each not in own and each not in DOCUMENTED)
