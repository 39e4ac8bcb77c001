"""Plants defects: code of the library is changed at run time, to see that a test notices.

A line of the library that matters has a marker, at its end or in a comment directly above: `# defect: W7-release` in
Python, `-- defect: W7-release` in Lua. A defect names the marker and says what stands there instead, so the rest of the
file may be reworded freely. In Python the marked statement is replaced, or the head of an `if` or a loop; in Lua the
marked line. A marker may stand at several lines, and then each of them is changed.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, final

import aiolocks
from aiolocks._redis import scripts as _scripts

Change = Callable[[str], str]
"""What stands in place of a statement, or of a line of Lua."""

_PACKAGE = Path(aiolocks.__file__).parent
_MARKED = re.compile(r"(?:#|--) defect: ([\w-]+(?:, [\w-]+)*)[ \t]*$", re.MULTILINE)
_IF_OF_LUA = re.compile(r"\b((?:else)?if|while) .+? (then|do)\b")
_IF_OF_PYTHON = re.compile(r"\A((?:el)?if|while)\b.+:[^\n]*\Z", re.DOTALL)


class NotThere(Exception):
    """No line has the marker, or there is no condition at it."""


@cache
def markers() -> dict[str, list[tuple[Path, int]]]:
    """Return where each marker stands: the files, and the numbers of the lines that are meant, from 0 on."""
    found: dict[str, list[tuple[Path, int]]] = {}
    for path in sorted([*_PACKAGE.rglob("*.py"), *_PACKAGE.rglob("*.lua")]):
        text = path.read_text(encoding="utf-8")
        for match in _MARKED.finditer(text):
            for name in match[1].split(", "):
                found.setdefault(name, []).append((path, _meant(text, match.start())))
    return found


def condition(value: bool) -> Change:
    """Return the change that makes the condition of an `if`, `while` or conditional expression be *value*."""

    def change(text: str) -> str:
        if _IF_OF_PYTHON.match(text):
            return _IF_OF_PYTHON.sub(rf"\1 {value}:", text)
        if _IF_OF_LUA.search(text):
            return _IF_OF_LUA.sub(rf"\1 {str(value).lower()} \2", text, count=1)
        test = next((node.test for node in ast.walk(ast.parse(text)) if isinstance(node, ast.IfExp)), None)
        if test is None:
            raise NotThere(f"no condition in {text!r}")
        return text.replace(ast.get_source_segment(text, test) or "", str(value))

    return change


@final
class Garden:
    """Where defects are planted; whatever was changed is put back by `undo`."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def at(self, marker: str, change: Change) -> None:
        """Change what is marked."""
        places = markers().get(marker, [])
        if not places:
            raise NotThere(f"no line is marked {marker!r}")
        for path in sorted({path for path, _ in places}):
            lines = [at for other, at in places if other == path]
            if path.suffix == ".lua":
                self._lua(str(path.relative_to(_PACKAGE / "_redis" / "lua").with_suffix("")), marker, change)
            else:
                self._python(path, lines, change)

    def _lua(self, name: str, marker: str, change: Change) -> None:
        read = _scripts._read

        def read_changed(other: str) -> str:
            text = read(other)
            return _changed(text, marker, change) if other == name else text

        self._set(_scripts, "_read", read_changed)
        _scripts.load.cache_clear()
        self._undo.callback(_scripts.load.cache_clear)

    def _python(self, path: Path, lines: list[int], change: Change) -> None:
        text = path.read_text(encoding="utf-8")
        module = import_module(".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts))
        of: dict[tuple[str, ...], list[int]] = {}
        for line in lines:
            of.setdefault(_function(ast.parse(text), line), []).append(line)
        for (*classes, name), inside in of.items():
            owner: Any = module
            for each in classes:
                owner = getattr(owner, each)
            found = inspect.getattr_static(owner, name)
            function: Any = found.fget if isinstance(found, property) else found
            function = inspect.unwrap(getattr(function, "__func__", function))
            space: dict[str, Any] = {}
            source = _source(text, [*classes, name], inside, change)
            exec(compile(source, f"<defect in {name}>", "exec"), function.__globals__, space)
            self.put(owner, name, space[name])

    def put(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute of *owner*, and where other modules have imported it by name."""
        old = inspect.getattr_static(owner, name)
        self._set(owner, name, new)
        if inspect.isroutine(old):
            for module in [module for key, module in sys.modules.items() if key.startswith(("aiolocks.", "tests."))]:
                if module is not owner and vars(module).get(name) is old:
                    self._set(module, name, new)

    def _set(self, owner: Any, name: str, new: Any) -> None:
        self._undo.callback(setattr, owner, name, inspect.getattr_static(owner, name))
        setattr(owner, name, new)


def _meant(text: str, at: int) -> int:
    """Return the number of the line that a marker there means: its own, or the next below lines of comment."""
    number, lines = text.count("\n", 0, at), text.splitlines()
    while lines[number].lstrip().startswith(("#", "--")):
        number += 1
    return number


def _changed(text: str, marker: str, change: Change) -> str:
    lines = text.splitlines()
    for match in _MARKED.finditer(text):
        if marker in match[1].split(", "):
            number = _meant(text, match.start())
            lines[number] = change(lines[number].partition(" -- ")[0].rstrip())
    return "\n".join(lines) + "\n"


def _function(tree: ast.AST, line: int) -> tuple[str, ...]:
    """Return the names of the classes and of the outermost function around a line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.lineno <= line + 1 <= node.end_lineno:
                return (node.name, *(_function(node, line) if isinstance(node, ast.ClassDef) else ()))
    raise NotThere(f"line {line + 1} is in no function")


def _source(text: str, names: list[str], inside: list[int], change: Change) -> str:
    """Return the source of a function with these of its lines changed."""
    tree: Any = ast.parse(text)
    for name in names:
        *_, tree = (node for node in tree.body if getattr(node, "name", "") == name)  # the last, behind its overloads
    lines = text.splitlines()
    for line in sorted(inside, reverse=True):
        first, last = _span(tree, line + 1)
        while lines[last - 1].lstrip().startswith("#"):  # below the head
            last -= 1
        old = textwrap.dedent("\n".join(lines[first - 1 : last]))
        indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
        new = change(old) or "pass"
        lines[first - 1 : last] = [textwrap.indent(new, indent)] + [""] * (last - first)
    begin = min([tree.lineno, *(decorator.lineno for decorator in tree.decorator_list)])
    return textwrap.dedent("\n".join(lines[begin - 1 : tree.end_lineno]))


def _span(function: ast.AST, line: int) -> tuple[int, int]:
    """Return the first and last line of the innermost statement there, or of its head if it has a body."""
    spans: list[tuple[int, int]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case) and node is not function:
            body: list[ast.stmt] = getattr(node, "body", [])
            begin: int = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
            end = node.end_lineno if not isinstance(node, ast.match_case) else begin
            assert end is not None
            spans.append((begin, max(begin, body[0].lineno - 1) if body else end))
    first, last = max(span for span in spans if span[0] <= line <= span[1])
    return first, last
