"""What asks has no effects: each function named `is_…` or `has_…`, or whose docstring begins with "Whether" or "Tell whether"."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CONTROLLER = Path(__file__).parents[3] / "controller"
_CHANGES = frozenset(
    (
        *("append", "appendleft", "add", "cancel", "clear", "close", "discard", "extend", "insert", "move_to_end", "pop", "popitem"),
        *("popleft", "put", "put_nowait", "remove", "send", "set", "setdefault", "update", "write"),
    )
)
"""Methods that change what they are called on."""


def test_nothing_that_asks_has_an_effect() -> None:
    found = []
    for path in sorted(CONTROLLER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _asks(node):
                found += [f"{path.relative_to(CONTROLLER)}:{node.lineno} {node.name}: {ast.unparse(each)[:60]}" for each in _effects(node)]
    assert found == []


def _asks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return function.name.lstrip("_").startswith(("is_", "has_")) or (ast.get_docstring(function) or "").startswith(
        ("Whether", "Tell whether")
    )


def _effects(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Assignments to anything but its own names, and calls that change something. To read from a server is none."""
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Yield | ast.YieldFrom):
            yield node
        changed = _changed(node)
        if changed is not None and not (isinstance(changed, ast.Name) and changed.id in own):
            yield node


def _changed(node: ast.AST) -> ast.expr | None:
    """What is assigned into or called to change; None: nothing."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return node.func.value
    return None
