"""`make setup` on machines that are not quite right: hack/setup.sh with a fake uv in front of it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[3] / "hack" / "setup.sh"

UV_WITHOUT_PYTHON = """#!/bin/sh
# A uv that finds no interpreter and may not download one; `uv sync` says which interpreter it was handed.
case "$*" in
  python*) exit 1 ;;
  sync*--dry-run) echo "$UV_PLAN" >&2 ;;
  sync*) echo "synced with $UV_PYTHON" ;;
esac
"""


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def run_setup(tmp_path: Path, pyenv_root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    executable(tmp_path / "bin" / "uv", UV_WITHOUT_PYTHON)
    environment |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYENV_ROOT": str(pyenv_root)}
    return subprocess.run(["bash", str(SETUP)], env=environment, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.slow
def test_the_newest_interpreter_of_pyenvs_folder_that_runs_is_handed_to_uv(tmp_path: Path) -> None:
    executable(tmp_path / "pyenv/versions/3.13.0/bin/python3", "#!/bin/sh\nexit 127\n")
    python = executable(tmp_path / "pyenv/versions/3.12.1/bin/python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    done = run_setup(tmp_path, tmp_path / "pyenv")
    assert done.returncode == 0, done.stderr
    assert f"synced with {python}" in done.stdout


def test_no_interpreter_is_said_plainly_with_what_to_do(tmp_path: Path) -> None:
    done = run_setup(tmp_path, tmp_path / "nothing")
    assert done.returncode == 1
    assert "no Python 3.12 or newer found" in done.stderr
    assert "UV_PYTHON" in done.stderr


@pytest.mark.slow
def test_what_is_downloaded_is_said_before_it_begins(tmp_path: Path) -> None:
    missing, there = (
        run_setup(tmp_path, tmp_path, UV_PYTHON=sys.executable, UV_PLAN=plan)
        for plan in ("Resolved 9 packages\nWould download 7 packages\nWould install 9 packages", "Would download 2 packages")
    )
    assert "downloading 7 packages of uv.lock: all together are 3.5 GB from PyPI" in missing.stderr
    assert not there.stderr, "two are the checkout's own, which are built"
