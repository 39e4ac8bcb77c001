"""How Sphinx makes the site; `.docs/make.py` runs it.

In docstrings, names in single backticks lead to what they name if that is public, and are plain code otherwise.
"""

import asyncio
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.util import inspect as sphinx_inspect
from sphinx.util import logging

import aiolocks

logger = logging.getLogger(__name__)

project = "aiolocks"
version = release = aiolocks.__version__
html_show_copyright = False
html_title = f"aiolocks {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # as repositories show them
default_role = "py:obj"
add_module_names = False
maximum_signature_line_length = 90
python_display_short_literal_types = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"

# Fields of a dataclass stand in its docstring alone; several options may share a line there.
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]

smartquotes = False  # "cancel" is a value
html_theme = "furo"
html_static_path = html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False

_VARIABLES = {"lease": "Lease", "lock": "Lock", "locks": "LockManager", "semaphore": "Semaphore", "rw": "RWLock"}
"""What examples call an object of which class."""

_LEASE = "~aiolocks._engine.lease.Lease"

_SHOWN = {
    " | ~aiolocks._core.options.Unset": "",
    "UNSET": "...",  # as stubs have it
    "~aiolocks._engine.must_await.Acquiring": _LEASE,  # once it is awaited
    f"~aiolocks._engine.must_await.MustAwait[{_LEASE} | None]": f"{_LEASE} | None",
    "~aiolocks._engine.lease.Hold": f"~contextlib.AbstractAsyncContextManager[{_LEASE}]",
}

_INTERNAL = {r"(?<== )_\w+(?=[,)])": "...", r": (~?\w+\.)*Unpack\[[^]]*\]": ""}
"""Defaults and types that only our modules name."""

_NOT_FOR_USERS = {"family"}

_CALL = re.compile(r"(?:await )?(\w+)\.(\w+)(?:\(.*\))?")


def _names(target: str) -> list[str]:
    """Return what *target* may be called in full: as it stands, in the package, or of an object of an example."""
    names = [target, target.removesuffix("()")]
    if target.startswith("aiolocks._"):  # where a type is defined; public is where it is imported to
        names.append(target.rpartition(".")[2])
    if found := _CALL.fullmatch(target):
        names.append(f"{_VARIABLES.get(found[1], found[1])}.{found[2]}")
    return names + [f"aiolocks.{name}" for name in names]


def _resolve(app: Any, environment: Any, node: Any, content: Any) -> Any:
    if node.get("refdomain") != "py":
        return None
    python = environment.domains["py"]
    for name in _names(node["reftarget"]):
        if name in python.objects:
            return python.resolve_xref(environment, node["refdoc"], app.builder, "obj", name, node, content)
    return None


def _skip(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what only our modules use, the fields of tuples, and what is inherited from Python and libraries."""
    if name in _NOT_FOR_USERS or type(member).__name__ == "_tuplegetter":
        return True
    if not inspect.isroutine(member) and not inspect.isdatadescriptor(member):
        return None
    function = getattr(member, "fget", member)
    definer = getattr(function, "__objclass__", function)  # of what is written in C
    return None if str(getattr(definer, "__module__", None)).startswith("aiolocks") else True


def _plain_text(app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Leave out the sentence that stands before the signature already.

    And keep napoleon from taking what stands before a colon in the docstring of an attribute for its type.
    """
    if name == f"aiolocks.{app.env.docname.removeprefix('reference/')}" and what != "module" and "" in lines:
        end = lines.index("")
        lines[:end] = ["::"] if lines[end - 1].endswith("::") else []
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]  # a comment


def _signature(app: Any, what: str, name: str, member: Any, options: Any, given: str, returned: str) -> Any:
    """Write signatures as a caller has it: no types that only our modules know."""
    for ours, shown in _SHOWN.items():
        given, returned = given and given.replace(ours, shown), returned and returned.replace(ours, shown)
    for ours, shown in _INTERNAL.items():
        given = given and re.sub(ours, shown, given)
    return given, returned


def _warn_of_quotes(app: Any, document: Any) -> None:
    """Nothing is quoted in docstrings: what looks so is code without a "::" before it."""
    for quote in document.findall(nodes.block_quote) if app.env.docname.startswith("reference/") else ():
        logger.warning("indented, but no code and no list: %r", quote.astext()[:60], location=quote)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    sphinx_inspect.iscoroutinefunction = asyncio.iscoroutinefunction  # which knows what is marked as one
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _plain_text, priority=400)  # before napoleon's
    app.connect("autodoc-process-signature", _signature)
    app.connect("doctree-read", _warn_of_quotes)
