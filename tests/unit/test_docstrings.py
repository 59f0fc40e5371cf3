"""Docstrings have a subject or a verb first, see STYLE.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_SUBJECT = ("Of ", "Until ", "Whose ")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that stands by itself: docstrings, and those below fields and constants."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["benchmarks", "controller", "hack", "runtimes"])
def test_no_docstring_begins_without_a_subject(folder: str) -> None:
    files = [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.stem.endswith("_pb2")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}" for path in files for line, text in docstrings(path) if text.startswith(NO_SUBJECT)
    ]
    assert not found, "name the thing first: `Seconds of a step`, in place of `Of a step, seconds`"
