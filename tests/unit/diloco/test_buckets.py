"""Files that are too large for memory, or for the usual parts of an upload."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from diloco.buckets import LEAST_PART, READ_BYTES, BucketFiles

_PEAK = """
import resource, sys
from pathlib import Path
from diloco.buckets import BucketFiles
from diloco.snapshots import remote_folders

def file_system(uri):
    return BucketFiles("file"), uri

remote_folders.file_system = file_system
remote, local = sys.argv[1:]
folders = remote_folders.RemoteFolders(remote)
folders.get("small", Path(local) / "small", ["data"])  # loads what is loaded once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folders.get("large", Path(local) / "large", ["data"])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


def a_sparse_file(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.slow
def test_a_file_is_downloaded_in_less_memory_than_it_has_bytes(tmp_path: Path) -> None:
    size = 256 << 20
    for name, data in (("small", 1), ("large", size)):
        a_sparse_file(tmp_path / "remote" / name / "data", data)
        a_sparse_file(tmp_path / "remote" / name / "manifest.json", 1)
        (tmp_path / "local" / name).mkdir(parents=True)
    command = [sys.executable, "-c", _PEAK, str(tmp_path / "remote"), str(tmp_path / "local")]
    grown = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert (tmp_path / "local" / "large" / "data").stat().st_size == size
    assert grown < size // 2, f"{grown >> 20} MiB"  # some blocks of 16 MiB


@pytest.mark.parametrize("size", [0, 5, READ_BYTES, READ_BYTES + 5])
def test_a_file_of_any_size_comes_back_as_it_was(tmp_path: Path, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    here, there, back = (tmp_path / name for name in ("here", "there", "back"))
    here.write_bytes(data[:size])
    files: Any = BucketFiles("file")
    files.put_file(str(here), str(there))
    files.get_file(str(there), str(back))
    assert back.read_bytes() == data[:size]


def test_a_missing_file_is_told_in_either_direction(tmp_path: Path) -> None:
    files: Any = BucketFiles("file")
    with pytest.raises(FileNotFoundError):
        files.get_file(str(tmp_path / "nowhere"), str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError):
        files.put_file(str(tmp_path / "nowhere"), str(tmp_path / "file"))


@pytest.mark.parametrize("gibibytes", [0, 1, 100, 4000])
def test_an_upload_has_no_more_parts_than_s3_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gibibytes: int) -> None:
    size = gibibytes << 30
    file = a_sparse_file(tmp_path / "file", size)
    sizes: list[int] = []

    class Store:
        async def put_async(self, path: str, file: Path, chunk_size: int = 5 << 20) -> None:
            sizes.append(chunk_size)

    files: Any = BucketFiles("file")
    monkeypatch.setattr(files, "_construct_store", lambda bucket: Store())
    files.put_file(str(file), str(tmp_path / "target"))
    (chunk_size,) = sizes
    assert chunk_size >= LEAST_PART
    assert -(-size // chunk_size) <= 10_000
