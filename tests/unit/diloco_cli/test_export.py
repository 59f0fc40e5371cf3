"""`diloco export`: where the file goes."""

from __future__ import annotations

import os
import pty
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from builders.snapshots import a_model, save_snapshot
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main
from safetensors.numpy import load_file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_snapshot(tmp_path / "snapshots", 10, a_model(3))
    return tmp_path / "snapshots"


def export(source: Path, output: Path) -> Result:
    return CliRunner().invoke(main, ["export", str(source), "-o", str(output)])


@contextmanager
def a_pipe(folder: Path) -> Iterator[Path]:
    os.mkfifo(folder / "pipe")
    yield folder / "pipe"


@contextmanager
def a_socket(folder: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        yield folder / "socket"


@contextmanager
def a_device(_folder: Path) -> Iterator[Path]:
    # A terminal: no file can be made beside it, not even by root, so a failure of this test does no harm.
    ours, theirs = pty.openpty()
    try:
        yield Path(os.ttyname(theirs))
    finally:
        os.close(ours)
        os.close(theirs)


@contextmanager
def a_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder in which a folder has the default name of the file."""
    (folder / "out" / "model.safetensors").mkdir(parents=True)
    yield folder / "out"


@pytest.mark.parametrize(
    ("there", "what"), [(a_pipe, "a pipe"), (a_socket, "a socket"), (a_device, "a device"), (a_folder, "model.safetensors is a folder")]
)
def test_what_is_no_regular_file_is_refused_and_stays(
    source: Path, tmp_path: Path, there: Callable[[Path], AbstractContextManager[Path]], what: str
) -> None:
    with there(tmp_path) as output:
        before = output.stat()
        done = export(source, output)
        assert (done.exit_code, f"{what}: give the name of a regular file" in done.output) == (1, True), done.output
        assert (output.stat().st_ino, output.stat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_the_file_behind_it_is_written(source: Path, tmp_path: Path, exists: bool) -> None:
    (tmp_path / "disk").mkdir()
    file, link = tmp_path / "disk" / "model", tmp_path / "link"
    if exists:
        file.write_text("older")
    link.symlink_to(file)
    done = export(source, link)
    assert (done.exit_code, done.output.count(f"{link}: ")) == (0, 1), done.output
    assert link.readlink() == file
    assert load_file(file)["scale"] == 3
