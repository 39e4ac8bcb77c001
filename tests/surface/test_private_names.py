"""Each private name of asyncio, anyio, redis-py and others that the package uses is there, and stands in one table."""

import argparse
import ast
import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
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


def has(*names: str) -> Callable[[object], bool]:
    return lambda thing: all(hasattr(thing, name) for name in names)


NEW_PYTHON = sys.version_info >= (3, 12)
OLD_REDIS_PY = int(version("redis").partition(".")[0]) < 7


def a_sentinel() -> Any:
    return cast("Any", Sentinel)([("localhost", 1)])


def is_called_back(met: Any) -> bool:
    return any(getattr(call, "__self__", None) is met.of_scopes for call, _ in met.awaited._callbacks or ())


def has_parents(met: Any) -> bool:
    outer, inner = met.scopes
    states: Any = sys.modules["anyio._backends._asyncio"]
    state = states._task_states.get(met.of_scopes)
    return state.cancel_scope is inner and inner._parent_scope is outer and outer._parent_scope is None


STREAM = "to take over the stream of a connection that redis-py has opened"
EXPECTED: dict[tuple[str, str, str], dict[str, Callable[[Any], object]]] = {
    ("Python", "_redis/connection.py", STREAM):
        {"StreamReader._buffer": lambda met: bytes(met.connection._reader._buffer) == b""},
    ("redis", "_redis/connection.py", STREAM): {
        "Connection._writer": lambda met: has("transport")(met.connection._writer),
        "Connection._reader": lambda met: has("_buffer")(met.connection._reader),
        "Connection._parser": lambda met: callable(met.connection._parser.parse_error),
    },
    ("fakeredis", "_redis/connection.py", "to end a link to the in-memory server"):
        {"FakeConnection._sock": lambda met: has("_sock")(met.in_memory)},
    ("Python", "_engine/cancellation.py", "to find the task that a cancellation reaches in the end"): {
        "Task._must_cancel": lambda met: met.task._must_cancel is False,
        "Task._fut_waiter": lambda met: met.task._fut_waiter is met.gathering,
        "Future._children": lambda met: len(met.gathering._children) == 1,
    },
    ("anyio", "_engine/cancellation.py", "to find the scopes of a task"): {
        "anyio._backends._asyncio": lambda _: "anyio._backends._asyncio" in sys.modules,
        "anyio._backends._asyncio._task_states": has_parents,
        "CancelScope._parent_scope": has_parents,
    },
    ("Python", "_grantors/who.py", "to name a task that waits"): {"Future._callbacks": is_called_back},
    ("Python", "_core/background.py", "to print nothing when a loop is closed, and to see that it ends"): {
        "Task._log_destroy_pending": lambda met: met.task._log_destroy_pending is True,
        "BaseEventLoop._asyncgens_shutdown_called": lambda met: met.loop._asyncgens_shutdown_called is False,
    },
    ("Python", "_core/hints.py", "to mark coroutine functions before 3.12"):
        {"asyncio.coroutines._is_coroutine": lambda _: NEW_PYTHON or has("_is_coroutine")(asyncio.coroutines)},
    ("Python", "testing/_clock.py", "to move the time of a loop in a user's test"): {
        "BaseEventLoop._scheduled": lambda met: isinstance(met.loop._scheduled, list),
        "BaseEventLoop._ready": lambda met: len(met.loop._ready) >= 0,
        "BaseEventLoop._clock_resolution": lambda met: met.loop._clock_resolution > 0,
        "asyncio._get_running_loop": lambda met: asyncio._get_running_loop() is met.loop,
    },
    ("Python", "cli/_arguments.py", "as a type"):
        {"argparse._SubParsersAction": lambda _: has("_SubParsersAction")(argparse)},
    ("Python", "cli/_completion.py", "to print the completion of a shell"): {
        "ArgumentParser._actions": lambda _: has("_actions")(argparse.ArgumentParser()),
        "Action._get_subactions": lambda _: has("_get_subactions")(argparse.ArgumentParser().add_subparsers()),
    },
    ("redis", "_redis/clients.py", "for its Encoder"):
        {"redis._parsers": lambda _: has("Encoder")(importlib.import_module("redis._parsers"))},
    ("redis", "_engine/guard.py", "for its BaseParser"):
        {"redis._parsers.base": lambda _: importlib.import_module("redis._parsers.base").BaseParser.parse_error},
    ("redis", "_redis/sentinel.py", "to connect to the host that a user demands"):
        {"SentinelManager._force_master_ip": lambda _: OLD_REDIS_PY or has("_force_master_ip")(a_sentinel())},
    ("aiohttp", "aiohttp.py", "to see that a request is a WebSocket"):
        {"RequestHandler._payload_parser": lambda _: "_payload_parser" in RequestHandler.__slots__},
}  # fmt: skip
"""Which names are there, by the library that has them, the module that uses them, and what for."""


@pytest_asyncio.fixture
async def met(redis_url: str) -> AsyncIterator[SimpleNamespace]:
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
        yield SimpleNamespace(
            connection=connection, in_memory=in_memory, task=task, gathering=gathering[0], awaited=awaited,
            scopes=scopes, of_scopes=of_scopes, loop=asyncio.get_running_loop(),
        )  # fmt: skip
        for each in (of_scopes, task):
            each.cancel()
        await asyncio.wait((of_scopes, task))
        for pool, each in zip(pools, (connection, in_memory), strict=True):
            await pool.release(each)


@pytest.mark.redis
@pytest.mark.parametrize(
    ("used", "name"),
    [(used, name) for used, names in EXPECTED.items() for name in names],
    ids=lambda of: of if isinstance(of, str) else of[1],
)
async def test_a_private_name_in_use_is_there(used: tuple[str, str, str], name: str, met: SimpleNamespace) -> None:
    library, module, use = used
    release = sys.version.partition(" ")[0] if library == "Python" else version(library)
    said = f"{name} of {library} {release}: used in {module} {use}"
    try:
        is_there = EXPECTED[used][name](met)
    except (AttributeError, ImportError, KeyError) as error:
        pytest.fail(f"{said}: {error}")
    assert is_there, said


@pytest.mark.rest
def test_the_table_has_every_private_name_that_the_package_uses_and_no_other() -> None:
    table = {(module, name.rpartition(".")[2]) for (_, module, _), names in EXPECTED.items() for name in names}
    modules = {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")
    }
    own = {name for tree in modules.values() for name in defined(tree)} - {name for _, name in table}
    used = {(module, name) for module, tree in modules.items() for name in foreign(tree, own)}
    assert sorted(used - table) == [], "private names of other libraries: each needs a row that says what it is for"
    assert sorted(table - used) == [], "rows of names that are not used any more"


def private_parts(name: object) -> list[str]:
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
