"""Messages are for people: nothing that the operator decides depends on one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[4]
RECONCILE = ROOT / "controller" / "diloco_operator" / "reconcile"
_WORDS = {"message", "cause", "grantor_said", "why", "lacks", "causes"}
"""Attributes that hold words."""
_READS = {"partition", "rpartition", "split", "rsplit", "startswith", "endswith", "find", "index", "count"}
"""Methods of a string by which code could learn something from it."""


def test_nothing_compares_messages_or_takes_them_apart() -> None:
    found = [place for path in sorted(RECONCILE.rglob("*.py")) if path.parent.name != "observe" for place in _readings(path)]
    assert found == []


def _readings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.expr):
            continue
        read: list[ast.expr] = []
        if isinstance(node, ast.Compare) and not _asks_for_none(node):
            read = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _READS:
            read = [node.func.value]
        if any(isinstance(each, ast.Attribute) and each.attr in _WORDS for each in read):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def _asks_for_none(node: ast.Compare) -> bool:
    return any(isinstance(each, ast.Constant) and each.value in (None, "") for each in node.comparators)
