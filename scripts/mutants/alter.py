"""Small faults that a careful reader would notice, one at a time in a file of Python.

The operators are the usual ones of mutation testing (DeMillo, Lipton, Sayward 1978): a comparison
at its border or turned around, a condition negated, a sum for a difference, a number one higher,
a call or an assignment left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_SUMS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.BitOr: "&",
}
_SILENT = {"debug", "info", "warning", "exception", "error", "warn", "echo"}
"""What is told, not done: a call left out of a log is no fault that a test must see."""


class Mutant(NamedTuple):
    """A span of a file's UTF-8 bytes, and what stands there instead."""

    start: int
    end: int
    text: str
    line: int

    def of(self, source: bytes) -> bytes:
        """Return the file with it."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(source: bytes) -> list[Mutant]:
    """Return every one of a file, in its order; none in annotations, docstrings and ``__all__``."""
    tree = ast.parse(source)
    places = _Places(source)
    return sorted(one for node in _code(tree) for one in _of(node, places))


class _Places:
    """Where a node's text begins and ends: the tree counts lines, and bytes within them."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno, node.end_col_offset
        if end_line is None or end_column is None:
            raise ValueError(f"no end at line {node.lineno}")
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[end_line - 1] + end_column,
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def instead(self, node: ast.expr | ast.stmt, text: str) -> Mutant:
        return Mutant(*self.span(node), text, node.lineno)

    def between(self, left: ast.expr, right: ast.expr, text: str) -> Mutant:
        """Replace the operator, which has no place of its own in the tree."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end].decode()
        kept = "(" * gap.count("("), ")" * gap.count(")")
        return Mutant(start, end, f"{kept[1]} {text} {kept[0]}", left.lineno)


def _code(tree: ast.Module) -> Iterator[ast.AST]:
    """Walk what runs within functions; a class's fields and a module's tables are declarations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                yield from _below(statement)


def _below(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns"} or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _below(child)


def _of(node: ast.AST, places: _Places) -> Iterator[Mutant]:
    yield from _of_operators(node, places)
    yield from _of_values(node, places)
    yield from _of_statements(node, places)


def _of_operators(node: ast.AST, places: _Places) -> Iterator[Mutant]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield places.between(left, right, _COMPARISONS[type(operator)])
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _SUMS:
            if not _is_text(left) and not _is_text(right):
                yield places.between(left, right, _SUMS[type(operator)])
        case ast.BoolOp(op=operator, values=[left, right]):
            yield places.between(left, right, "or" if isinstance(operator, ast.And) else "and")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield places.instead(node, f"({places.text(operand)})")


def _of_values(node: ast.AST, places: _Places) -> Iterator[Mutant]:
    match node:
        case ast.Constant(value=bool() as value):
            yield places.instead(node, str(not value))
        case ast.Constant(value=int() as value):
            yield places.instead(node, str(value + 1))


def _of_statements(node: ast.AST, places: _Places) -> Iterator[Mutant]:
    match node:
        case ast.If(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp | ast.BoolOp):
            yield places.instead(test, f"not ({places.text(test)})")
        case ast.Expr(value=ast.Call(func=called)) if _name(called) not in _SILENT:
            yield places.instead(node, "pass")
        case ast.AugAssign() | ast.Raise():
            yield places.instead(node, "pass")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield places.instead(value, "None")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
