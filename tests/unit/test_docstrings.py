"""Docstrings have a subject or a verb first, see STYLE.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_SUBJECT = ("Of ", "Until ", "Whose ")
_MAY_BEGIN_SO = re.compile(rf"['\"](?:{'|'.join(NO_SUBJECT)})")
"""Files without a match are not parsed, which takes ten times as long."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of strings that stand by themselves: docstrings, and those below fields and constants."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if _MAY_BEGIN_SO.search(text) else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@pytest.mark.parametrize("folder", ["benchmarks", "controller", "hack", "runtimes"])
def test_no_docstring_begins_without_a_subject(folder: str) -> None:
    files = [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.stem.endswith("_pb2")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}" for path in files for line, text in docstrings(path) if text.startswith(NO_SUBJECT)
    ]
    assert not found, "name the thing first: `Seconds of a step`, in place of `Of a step, seconds`"
