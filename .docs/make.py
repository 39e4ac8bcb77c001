"""Make the API reference of the docstrings, as HTML in build/docs or the folder named. Every warning is an error.

    python .docs/make.py [FOLDER]

Needs the extra `docs`. What is public is read from the code: a page for each module, and for each class and function
of the package itself.
"""

import inspect
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).resolve().parent

NO_API = {"aiolocks.__main__", "aiolocks.cli"}

MODES = {
    "aiolocks.RWLock": "aiolocks._primitives.rwlock.RWLockMode",
    "aiolocks.HierarchicalLock": "aiolocks._primitives.hierarchy.HierarchicalMode",
    "aiolocks.sync.RWLock": "aiolocks.sync.RWLockMode",
}
"""What is held of those that cannot be held themselves."""

NOT_MADE_BY_USERS = {"Lease"}


def public_modules(package: ModuleType) -> Iterator[ModuleType]:
    """Import *package* and what is public below it."""
    yield package
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.name.rpartition(".")[2].startswith("_") and found.name not in NO_API:
            module = import_module(found.name)
            yield from public_modules(module) if found.ispkg else [module]


def public_names(module: ModuleType) -> list[str]:
    """Return its `__all__`; where there is none, what it defines itself."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return list(getattr(module, "__all__", None) or (name for name in defined if not name.startswith("_")))


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def entry(module: ModuleType, name: str) -> str:
    """Return the directives that show a public name."""
    value: Any = getattr(module, name)
    members = "   :members:\n   :inherited-members:\n\n"
    if inspect.isroutine(value):
        return f".. autofunction:: {module.__name__}.{name}\n\n"
    if not inspect.isclass(value):
        return f".. autodata:: {module.__name__}.{name}\n   :no-value:\n\n"
    arguments = "()" if name in NOT_MADE_BY_USERS else ""
    shown = f".. auto{'exception' if is_error(value) else 'class'}:: {module.__name__}.{name}{arguments}\n{members}"
    mode = MODES.get(f"{module.__name__}.{name}")
    return shown + (f".. autoclass:: {mode}()\n{members}" if mode else "")


def first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0].rstrip(":")


def summary(module: ModuleType, name: str) -> str:
    """Return a line about a public name: the first of its docstring."""
    return f"* `{name}`: {first_line(getattr(module, name))}\n"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    package = import_module("aiolocks")
    own, errors = [], []
    for name in public_names(package):
        (errors if is_error(getattr(package, name)) else own).append(name)
    here = f".. currentmodule:: {package.__name__}\n\n"
    for name in own:
        yield name, here + title(name) + entry(package, name)
    yield "errors", here + title("Errors") + "".join(entry(package, name) for name in errors)
    modules = [module for module in public_modules(package) if module is not package]
    for module in modules:
        shown = "".join(entry(module, name) for name in public_names(module))
        yield module.__name__, title(module.__name__) + f".. automodule:: {module.__name__}\n\n{shown}"
    contents = "\n".join(f"   {name}" for name in [*own, "errors", *(module.__name__ for module in modules)])
    yield "index", (
        title("API reference")
        + f".. automodule:: {package.__name__}\n\nEvery duration is a number of seconds or a `timedelta`.\n\n"
        + "".join(summary(package, name) for name in own)
        + "* :doc:`errors`\n\n"
        + "".join(f"* :doc:`{module.__name__}`: {first_line(module)}\n" for module in modules)
        + f"\n.. toctree::\n   :hidden:\n\n{contents}\n"
    )  # fmt: skip


def main(folder: str = str(HERE.parent / "build" / "docs")) -> int:
    # A fixture is shown as the function that it was made of.
    pytest.fixture = lambda function=None, **_: function or (lambda function: function)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as source:
        for name, text in pages():
            Path(source, f"{name}.rst").write_text(text, encoding="utf-8")
        return sphinx(["-q", "-W", "--keep-going", "-E", "-d", f"{source}/.doctrees", "-c", str(HERE), source, folder])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
