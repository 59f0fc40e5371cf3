"""What `help` prints of a function is what its author wrote, and nothing of the process that runs it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "package",
    ["runtimes/diloco", "controller/diloco_operator", "controller/diloco_local", "controller/diloco_cli", "controller/diloco_client"],
)
def test_no_signature_has_the_environment_as_a_default(package: str) -> None:
    """`help(diloco.torch.join)` printed all of it, secrets included; notebooks do so on Shift-Tab."""
    found = []
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for text, path in ((path.read_text(), path) for path in files):
        for node in ast.walk(ast.parse(text)) if "environ" in text else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                defaults = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None]
                found += [f"{path.relative_to(ROOT)}:{default.lineno}" for default in defaults if "environ" in ast.unparse(default)]
    assert found == []
