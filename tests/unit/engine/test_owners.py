"""Who writes the state of requests and leases: their own classes alone."""

import ast
from pathlib import Path

import pytest

import aiolocks
from aiolocks._engine.lease_state import LeaseState, Validity
from aiolocks._engine.request import Request

_ROOM = Path(aiolocks.__file__).parent
_STATE = {slot for each in (Request, LeaseState, Validity) for slot in each.__slots__} - {"__weakref__"}
_FILES = [path for layer in ("_engine", "_grantors", "_primitives") for path in sorted((_ROOM / layer).glob("*.py"))]


def _written(tree: ast.AST) -> list[ast.Attribute]:
    """Return the attributes that are assigned, except by their own object; an `Acquisition` is no state."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del))
        if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "acquisition"})
    ]


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_the_state_of_a_request_or_lease_is_written_by_its_own_class_alone(path: Path) -> None:
    found = [f"line {node.lineno}: {ast.unparse(node)}" for node in _written(ast.parse(path.read_text()))]
    assert not [text for text in found if text.rpartition(".")[2] in _STATE]
