"""Mutants of a Python file: by its syntax tree, changed in its text, so that comments and lines stay where they are."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import final

from tests.mutants.mutant import Mutant

_COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip

_EXTREMES = {"min": "max", "max": "min"}

_ENDED = re.compile(r"_(?:timer|task|beating)$")

_BOUNDS = {"<", "<=", ">", ">="}
_TIMES = re.compile(r"\b(?:now|until|due|took|before|clock\(\)|next_due|\w+_at|\w*_until|\w*_since|quiet|deadline)\b")


def mutants(path: str, text: str) -> list[Mutant]:
    """Return all of a file, in the order of its text."""
    return sorted(_Visitor(path, text).all(), key=lambda mutant: (mutant.start, mutant.end, mutant.new))


@final
class _Visitor:
    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def all(self) -> Iterator[Mutant]:
        yield from self._below(ast.parse(self._text))

    def _below(self, node: ast.AST) -> Iterator[Mutant]:
        yield from self._of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if name == "right" and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
                continue  # how far a pause doubles: another bound ends it sooner
            if name == "args" and isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
                value = value[:2]  # no default is used: the attribute is there
            if name == "body" and isinstance(node, ast.FunctionDef) and node.name == "__init__":
                value = [child for child in value if not _is_first_value(child)]
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _says_nothing(child):
                    yield from self._below(child)

    def _of(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.Compare():
                for left, right in pairwise([node.left, *node.comparators]):
                    yield from self._between(left, right, _COMPARISONS, "comparison")
            case ast.BoolOp():
                for left, right in pairwise(node.values):
                    yield from self._between(left, right, {"and": "or", "or": "and"}, "and/or")
            case ast.BinOp(op=ast.Add() | ast.Sub()) if not isinstance(node.right, ast.List | ast.JoinedStr):
                yield from self._between(node.left, node.right, {"+": "-", "-": "+"}, "sign")
            case ast.Constant(value=bool(value)):
                yield self._instead(node, str(not value), "constant")
            case ast.Constant(value=int(value)):
                yield self._instead(node, str(value + 1), "constant")
            case ast.Constant(value=float(value)):
                yield self._instead(node, repr(2 * value or 1.0), "constant")
            case ast.UnaryOp(op=ast.Not()):
                yield self._instead(node, self._source(node.operand), "not dropped")
            case ast.If() | ast.IfExp():
                yield self._instead(node.test, f"(not ({self._source(node.test)}))", "branches swapped")
            case ast.Call(func=ast.Name(id=name)) if name in _EXTREMES:
                yield self._instead(node.func, _EXTREMES[name], "min/max")
            case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
                yield self._instead(node, "pass", "line dropped")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield self._instead(node, "pass", "line dropped")
            case _:
                pass

    def _at(self, line: int, column: int) -> int:
        """Return where in the text that is; the tree counts bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _source(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    def _instead(self, node: ast.AST, new: str, kind: str) -> Mutant:
        return Mutant(self._path, *self._span(node), new, kind)

    def _between(self, left: ast.expr, right: ast.expr, swaps: dict[str, str], kind: str) -> Iterator[Mutant]:
        start, end = self._span(left)[1], self._span(right)[0]
        operator = " ".join(self._text[start:end].strip("() \n").split())
        if operator in _BOUNDS and (_TIMES.search(self._source(left)) or _TIMES.search(self._source(right))):
            return  # at the very instant of a bound either is right
        if operator in swaps:  # else there is a comment between
            at = self._text.index(operator.split()[0], start)
            stop = self._text.rindex(operator.split()[-1], start, end) + len(operator.split()[-1])
            yield Mutant(self._path, at, stop, swaps[operator], kind)


def _is_first_value(node: ast.AST) -> bool:
    """Whether an attribute gets a value there that says nothing: what it is comes later, before it is read."""
    match node:
        case ast.Assign(targets=[ast.Attribute()], value=value) | ast.AnnAssign(target=ast.Attribute(), value=value):
            return isinstance(value.operand if isinstance(value, ast.UnaryOp) else value, ast.Constant)
        case _:
            return False


def _says_nothing(node: ast.AST) -> bool:
    """Whether it is a docstring, for type checkers alone, a number with a name, or a check of what cannot happen."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Subscript(value=ast.Name(id="Literal" | "cast")):
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()) if name.isupper():
            return True
        case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Constant(None)) if _ENDED.search(name):
            return True  # to cancel once more what has ended does nothing
        case ast.keyword(arg="strict"):  # of zip: the lists are as long as each other
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)
        case _:
            return False
