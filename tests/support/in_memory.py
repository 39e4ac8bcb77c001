"""The server in memory, compiling each script once: a third of the processor time of its tests went into compiling.

fakeredis compiles a script whenever it is called, and collects all of Lua's garbage after it. Here its interpreter
keeps what it has compiled, and collects as Lua does by itself. What scripts do, and see, is the same.
"""

from functools import cache, lru_cache
from typing import Any

from lupa import lua51

_COLLECT = "collectgarbage()"
_KEPT = 64
"""Functions at most: each keeps its interpreter, and so a server whose test is over."""


class _Runtime(lua51.LuaRuntime):  # type: ignore[misc,unused-ignore]  # no stubs
    def execute(self, source: Any, *arguments: Any) -> Any:
        return None if source == _COLLECT else _compiled(self, source)(*arguments)


@lru_cache(maxsize=_KEPT)
def _compiled(runtime: _Runtime, source: Any) -> Any:
    return runtime.compile(_bytecode(source) if isinstance(source, bytes) else source)


@cache
def _bytecode(source: bytes) -> bytes:
    """Return what any interpreter reads in a tenth of the time."""
    runtime = lua51.LuaRuntime(encoding=None)
    return runtime.eval("string.dump")(runtime.compile(source))  # type: ignore[no-any-return,unused-ignore]


def compile_once() -> None:
    """For all servers in memory that begin in this process from now on."""
    lua51.LuaRuntime = _Runtime
