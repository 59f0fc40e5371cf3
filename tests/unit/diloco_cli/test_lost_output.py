"""Standard output that is full or closed, and folders that may not be read or written."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from diloco_cli.diloco.main import main

NOBODY = 65534
JOB = str(Path(__file__).parents[3] / "examples" / "cpu.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["diloco", "kubectl-diloco"])
def test_a_full_output_is_an_error_and_no_traceback(program: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([Path(sys.executable).parent / program, "crd"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "Error: standard output cannot be written: No space left on device\n")


@pytest.mark.slow
def test_a_closed_output_takes_nothing_and_harms_nothing() -> None:
    command = f"{Path(sys.executable).parent / 'diloco'} validate {JOB} >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0


SAYS = """
import click
from diloco_cli.program import Program

@click.group(cls=Program)
def main(): ...

@main.command()
def say():
    click.echo("both are in use; \u2026")

main(["say"])
"""


@pytest.mark.slow
def test_an_output_without_a_sign_for_a_character_gets_another_one() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", SAYS], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"both are in use; ?\n")


@contextlib.contextmanager
def without_rights(folder: Path, mode: int) -> Iterator[None]:
    """Run as a user who does not own the folder, if this is root, to whom modes mean nothing."""
    folder.chmod(mode)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # not below tmp_path, which only its owner may enter
        Path(name).chmod(0o755)
        inner = Path(name) / "state"
        inner.mkdir()
        yield inner


@pytest.mark.parametrize("command", [["snapshots"], ["export"], ["tape", "show"], ["replay"], ["report"]], ids=" ".join)
def test_a_folder_that_may_not_be_read_is_named(folder: Path, command: list[str]) -> None:
    words = [*command, str(folder)]
    assert CliRunner().invoke(main, words).exit_code == 1  # it is empty; and all modules are imported now
    with without_rights(folder, 0):
        done = CliRunner().invoke(main, words)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2)
    assert str(folder) in done.output


def test_a_state_directory_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "file").touch()
    done = CliRunner().invoke(main, ["up", JOB, "--state-dir", str(folder / "file" / "x")])
    assert done.exit_code == 2
    assert f"the state directory {folder}/file/x cannot be used: Not a directory" in done.output
