"""Where defects are planted: what is broken at run time, to see that a check notices.

Each is a change of a text, in a Lua file or in a function's source, or a function put around another. A text that is
not there any more is an error: whoever changes the code moves the defect along with it.
"""

import inspect
import sys
import textwrap
from contextlib import ExitStack
from types import FunctionType
from typing import Any, final

from aiolocks._redis import scripts as _scripts


class NotThere(Exception):
    """The text to replace is not in the code any more."""


@final
class Garden:
    """Where defects are planted; whatever was changed is put back by `undo`."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def lua(self, name: str, old: str, new: str) -> None:
        """Replace *old* in ``lua/<name>.lua``."""
        read = _scripts._read
        if old not in read(name):
            raise NotThere(f"lua/{name}.lua does not contain {old!r}")
        self._set(_scripts, "_read", lambda other: read(other).replace(old, new) if other == name else read(other))
        _scripts.load.cache_clear()
        self._undo.callback(_scripts.load.cache_clear)

    def shared(self, old: str, new: str) -> None:
        """Replace *old* in the libraries that have it."""
        names = [f"libraries/{path.stem}" for path in _scripts._FOLDER.glob("libraries/*.lua")]
        homes = [name for name in names if old in _scripts._read(name)]
        if not homes:
            raise NotThere(f"no library in lua/ contains {old!r}")
        for name in homes:
            self.lua(name, old, new)

    def source(self, owner: Any, name: str, old: str, new: str) -> None:
        """Replace *old* in the source of a function, method or property of *owner*, a module or class."""
        found = inspect.getattr_static(owner, name)
        function: Any = found.fget if isinstance(found, property) else found
        text = textwrap.dedent(inspect.getsource(function))
        if old not in text:
            raise NotThere(f"{function.__qualname__} does not contain {old!r}")
        space: dict[str, Any] = {}
        exec(compile(text.replace(old, new), f"<defect in {name}>", "exec"), function.__globals__, space)
        self.put(owner, name, space[name])

    def put(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute of *owner*, and where other modules have imported it by name."""
        old = inspect.getattr_static(owner, name)
        self._set(owner, name, new)
        if isinstance(old, FunctionType):
            for module in [module for key, module in sys.modules.items() if key.startswith("aiolocks.")]:
                if module is not owner and vars(module).get(name) is old:
                    self._set(module, name, new)

    def _set(self, owner: Any, name: str, new: Any) -> None:
        self._undo.callback(setattr, owner, name, inspect.getattr_static(owner, name))
        setattr(owner, name, new)
