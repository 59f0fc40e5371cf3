"""Rewrites the assertions of each test module once, before the processes of a test run start.

Pytest rewrites a module when a process first imports it, and keeps the result as bytecode. In a fresh clone, all processes of a run would
do so at the same time, each for all modules: 25 s of a core.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

# Not a public part of pytest: tests/unit/hack/test_rewritten_tests.py checks that a new version of pytest still reads this bytecode.
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir


def rewrite_tests(config: pytest.Config, folder: Path, processes: int) -> None:
    """Rewrite every test module below `folder` whose bytecode is missing or old, in at most this many processes."""
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    files = [file for pattern in ("test_*.py", "conftest.py") for file in folder.rglob(pattern)]
    missing = [file for file in files if _read_pyc(file, _bytecode(file)) is None]
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_rewrite, args=(config, missing[part::processes])) for part in range(min(processes, len(missing)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _bytecode(file: Path) -> Path:
    return get_cache_dir(file) / f"{file.stem}{PYC_TAIL}"


def _rewrite(config: pytest.Config, files: Sequence[Path]) -> None:
    for file in files:
        bytecode = _bytecode(file)
        bytecode.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(SyntaxError):  # the process that imports the module reports the error, with its place
            status, code = _rewrite_test(file, config)
            _write_pyc(config.stash[assertstate_key], code, status, bytecode)
