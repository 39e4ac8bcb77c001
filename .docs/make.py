"""Make the site: guides of the Markdown files where they stand, and a reference of the docstrings. Warnings are errors.

    python .docs/make.py [FOLDER]

Writes HTML into build/docs or the folder named, with `llms.txt`, the Markdown and the pictures beside it. Needs the
group `docs`. The reference has a page for each public class and function of the package, and for each public module
below it.
"""

import inspect
import os
import pkgutil
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sphinx.cmd.build import main as sphinx

import aiolocks

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent

GUIDES = {
    "Guides": {
        "tutorial": ("Tutorial", ".docs/tutorial.md"),
        "recipes": ("Recipes", "examples/README.md"),
        "guarantees": ("Guarantees", ".docs/guarantees.md"),
        "operations": ("Operations", "examples/OPERATING.md"),
        "troubleshooting": ("Troubleshooting", ".docs/troubleshooting.md"),
        "comparison": ("Comparison", ".docs/comparison.md"),
        "how-it-works": ("How it works", ".docs/how-it-works.md"),
        "benchmarks": ("Benchmarks", ".bench/README.md"),
    },
    "Project": {
        "changelog": ("Changelog", "CHANGELOG.md"),
        "contributing": ("Contributing", ".github/CONTRIBUTING.md"),
        "security": ("Security", ".github/SECURITY.md"),
        "tests": ("Running the tests", "tests/README.md"),
        "architecture": ("Architecture", "aiolocks/ARCHITECTURE.md"),
    },
}
"""The pages made of Markdown, beside README: their names in the site, their titles in the sidebar and their files."""

REFERENCE = {
    "locks": (
        "Locks",
        "Lock Semaphore RateLimiter RWLock HierarchicalLock RLock MultiLock Redlock Versioned LockManager with_lock"
        " aiolocks.sync aiolocks.compat",
    ),
    "leases": ("Leases", "Lease Holder Waiter Statistics"),
    "loops": ("Loops", "Election Once+once Outcome"),
    "web": ("Web frameworks", "aiolocks.fastapi aiolocks.aiohttp"),
    "testing": ("Testing", "aiolocks.testing*"),
    "events": ("Events", "aiolocks.events aiolocks.otel"),
    "errors": ("Errors", ""),
}
"""The groups of the reference: their titles and pages. A `*` stands for modules below, a `+` joins two in a page."""

NO_API = {"aiolocks.__main__", "aiolocks.cli"}

MODES = {
    "aiolocks.RWLock": "aiolocks._primitives.rwlock.RWLockMode",
    "aiolocks.HierarchicalLock": "aiolocks._primitives.hierarchy.HierarchicalMode",
    "aiolocks.sync.RWLock": "aiolocks.sync.RWLockMode",
}
"""What is held of those that cannot be held themselves."""

NOT_MADE_BY_USERS = {"Lease"}

BARRIERS: dict[str, Any] = {
    r'role="heading"': 'role="heading" aria-level="2"',
    r'<aside class="sidebar-drawer"': '<aside aria-label="Site" class="sidebar-drawer"',
    r'<aside class="toc-drawer': '<aside aria-label="Contents" class="toc-drawer',
    r"<pre>": '<pre tabindex="0">',  # so that keys can scroll it
    r"<dl>\n((?:<dd>.*?</dd>\s*)+)</dl>": lambda found: (  # parameters: a list without terms
        f'<span class="parameters">{found[1].replace("dd>", "span>")}</span>'
    ),
}
"""What axe finds in the pages of Sphinx and its theme, and what stands there instead."""

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".json": "json", ".lua": "lua", ".py": "python", ".toml": "toml", ".yaml": "yaml"}


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


def sentence(value: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()).rstrip(":.") + "."


def contents(names: dict[str, str]) -> str:
    """Return pages for the sidebar, with their titles."""
    return "\n.. toctree::\n   :hidden:\n\n" + "".join(f"   {shown} <{name}>\n" for name, shown in names.items())


def reference() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the sentence and the text in reST of each page of the reference."""
    modules = {module.__name__: module for module in public_modules(aiolocks)}
    names = public_names(modules.pop("aiolocks"))
    errors = [name for name in names if is_error(getattr(aiolocks, name))]
    left = {*names, *modules} - set(errors)
    here = ".. currentmodule:: aiolocks\n\n"
    overview = ""
    for group, (heading, listed) in REFERENCE.items():
        members: dict[str, list[str]] = {}
        for listing in listed.split():
            name, *more = listing.split("+")
            below = sorted(one for one in left if one.startswith(name[:-1])) if name.endswith("*") else [name]
            members |= dict.fromkeys(below, more)
            left -= {*below, *more}
        text = here + title(heading)
        for name, more in members.items():
            if name in modules:
                shown = "".join(entry(modules[name], one) for one in public_names(modules[name]))
                yield name, sentence(modules[name]), title(name) + f".. automodule:: {name}\n\n{shown}"
                text += f"* :doc:`{name}`: {sentence(modules[name])}\n"
            else:
                said = sentence(getattr(aiolocks, name))
                shown = "".join(entry(aiolocks, one) for one in (name, *more))
                yield name, said, here + title(name) + f"{said}\n\n{shown}"
                text += f"* `{name}`: {said}\n"
        overview += f"* :doc:`{group}`: {', '.join(f'`{name}`' for name in members or errors)}\n"
        if group == "errors":
            text += "".join(entry(aiolocks, name) for name in errors)
        else:
            text += contents({name: name for name in members})
        yield group, "", text
    if left:
        sys.exit(f"in no group of the reference: {sorted(left)}")
    groups = contents({group: heading for group, (heading, _) in REFERENCE.items()})
    said = "Every duration is a number of seconds or a `timedelta`."
    yield "index", "", here + title("Reference") + f"{said}\n\n{overview}{groups}"


def guides() -> dict[str, tuple[str, str]]:
    """Return the title and file of each page made of Markdown."""
    return {
        "index": ("aiolocks", "README.md"),
        **{name: page for pages in GUIDES.values() for name, page in pages.items()},
    }


class Source:
    """A folder from which Sphinx makes the site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = {file: name for name, (_, file) in guides().items()}

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def link(self, found: re.Match[str], file: Path) -> str:
        """Return a link of the site in place of a link between files of the repository."""
        path = Path(os.path.normpath(file.parent / found[1]))
        target = str(path.relative_to(REPOSITORY))
        if path.suffix in (".svg", ".png"):
            self.folder.joinpath("pictures").mkdir(exist_ok=True)
            shutil.copy(path, self.folder / "pictures")
            return f"](pictures/{path.name})"
        if target not in self.names:  # it is no page, so its text becomes one
            self.names[target] = f"source/{target.lstrip('.')}"
            language = LANGUAGES.get(path.suffix, "text")
            shown = f"---\norphan: true\n---\n\n# {target}\n\n`````{{code-block}} {language}\n\n"
            self.write(f"{self.names[target]}.md", shown + path.read_text(encoding="utf-8").rstrip() + "\n`````\n")
        return f"]({self.names[target]}.md{found[2] or ''})"

    def guide(self, name: str, file: str) -> None:
        path = REPOSITORY / file
        text = path.read_text(encoding="utf-8")
        parts, end = [], 0
        for fence in FENCED.finditer(text):  # where nothing is a link
            parts += [LINK.sub(lambda found: self.link(found, path), text[end : fence.start()]), fence[0]]
            end = fence.end()
        parts.append(LINK.sub(lambda found: self.link(found, path), text[end:]))
        self.write(f"{name}.md", "".join(parts) + (self.sidebar() if name == "index" else ""))

    def sidebar(self) -> str:
        shown = ""
        for caption, pages in GUIDES.items():
            lines = "".join(f"{heading} <{name}>\n" for name, (heading, _) in pages.items())
            shown += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}```\n"
            if caption == "Guides":
                shown += "\n```{toctree}\n:hidden:\n:caption: Reference\n\nreference/index\n```\n"
        return shown

    def begins(self, name: str) -> str:
        """Return the first sentence of a guide."""
        text = re.sub(r"<!--.*?-->", "", (self.folder / f"{name}.md").read_text(encoding="utf-8"))
        prose = next(part for part in text.split("\n\n") if re.match(r"[A-Za-z]", part))
        return re.split(r"(?<=\.)\s", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())))[0]


def main(folder: str = str(REPOSITORY / "build" / "docs")) -> int:
    # A fixture is shown as the function that it was made of.
    pytest.fixture = lambda function=None, **_: function or (lambda function: function)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as doctrees:
        source = Source(Path(made))
        listed = f"# aiolocks\n\n> {inspect.getdoc(aiolocks)}\n\n## Guides\n\n"
        for name, (heading, file) in guides().items():
            source.guide(name, file)
            listed += f"- [{heading}]({name}.md): {source.begins(name)}\n"
        listed += "\n## Reference\n\n"
        for name, said, text in reference():
            source.write(f"reference/{name}.rst", text)
            listed += f"- [{name}](reference/{name}.html): {said}\n" if said else ""
        source.write("llms.txt", listed)
        arguments = ["-q", "-W", "--keep-going", "-E", "-j", "auto", "-d", doctrees, "-c", str(HERE), made, folder]
        status = sphinx(arguments)
        for page in Path(folder).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for barrier, instead in BARRIERS.items():
                text = re.sub(barrier, instead, text)
            page.write_text(text, encoding="utf-8")
        shutil.copytree(made, folder, ignore=shutil.ignore_patterns("*.rst"), dirs_exist_ok=True)
        return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
