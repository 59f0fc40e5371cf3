"""Modules of tests whose assertions are rewritten ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rewritten_tests import rewrite_tests

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}


@pytest.mark.slow
def test_pytest_takes_what_was_rewritten_ahead(tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    (tmp_path / "inner").mkdir()
    for name in ("test_one.py", "inner/test_two.py"):
        (tmp_path / name).write_text("def test_values() -> None:\n    value = 3\n    assert value == 4\n")
    (tmp_path / "test_wrong.py").write_text("def test_(:\n")
    rewrite_tests(pytestconfig, tmp_path, 2)
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.pyc")}
    assert sorted(file.name.partition(".")[0] for file in written) == ["test_one", "test_two"]

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "test_one.py", "inner"]
    said = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False).stdout
    assert said.count("E       assert 3 == 4") == 2, said
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("test_*.pyc")} == written

    rewrite_tests(pytestconfig, tmp_path, 2)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("test_*.pyc")} == written
