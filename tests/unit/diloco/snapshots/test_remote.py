from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from builders.failing_disk import failing_info
from diloco.snapshots.remote import RemoteSnapshots
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE, SnapshotError, SnapshotStore
from diloco.snapshots.tensor_file import TensorParts


@pytest.fixture
def local(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "local", 3)


def save(store: SnapshotStore, t: int) -> Path:
    return store.save(t, TensorParts([{"x": np.full(3, t, dtype=np.float32)}]), {"epoch": t})


def with_copies(uri: str, local: SnapshotStore, *steps: int, keep: int = 3) -> RemoteSnapshots:
    remote = RemoteSnapshots(uri, keep)
    for t in steps:
        remote.upload(save(local, t))
    return remote


def names(uri: str) -> list[str]:
    fs, base = fsspec.core.url_to_fs(uri)
    return sorted(str(entry).rpartition("/")[2] for entry in fs.ls(base, detail=False))


def restored(uri: str, folder: Path) -> int:
    store = SnapshotStore(folder, 3)
    assert RemoteSnapshots(uri, 3).restore(store) is not None
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.tensors["x"].tolist() == [loaded.t] * 3
    assert loaded.meta == {"epoch": loaded.t}
    return loaded.t


def test_lost_volume_is_restored_from_the_newest_copy(uri: str, local: SnapshotStore, tmp_path: Path) -> None:
    with_copies(uri, local, 1, 2)
    assert restored(uri, tmp_path / "new") == 2


def test_nothing_is_restored_where_there_is_none_or_to_a_volume_that_has_snapshots(uri: str, local: SnapshotStore) -> None:
    assert RemoteSnapshots(uri, 3).restore(local) is None
    assert local.paths() == []
    assert with_copies(uri, local, 1).restore(local) is None
    assert len(local.paths()) == 1


def test_only_the_newest_copies_are_kept(uri: str, local: SnapshotStore) -> None:
    with_copies(uri, local, *range(1, 6), keep=2)
    assert names(uri) == ["snapshot-00000004-t4", "snapshot-00000005-t5"]


def test_of_one_step_one_copy_stays(uri: str, local: SnapshotStore, tmp_path: Path) -> None:
    remote = with_copies(uri, local, 1, 2)
    remote.upload(local.save(2, TensorParts([{"x": np.full(3, 7, dtype=np.float32)}]), {}))
    assert names(uri) == ["snapshot-00000001-t1", "snapshot-00000003-t2"]


def test_new_manifest_is_copied_without_the_tensors(
    uri: str, local: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = with_copies(uri, local, 1)
    path = local.save(1, TensorParts([{"x": np.full(3, 1, dtype=np.float32)}]), {"epoch": 1, "evaluations": 2})
    fs, _ = fsspec.core.url_to_fs(uri)
    real, put = type(fs).put_file, []

    def put_file(self: Any, source: str, *args: Any, **kwargs: Any) -> Any:
        put.append(Path(source).name)
        return real(self, source, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "put_file", put_file)
        remote.upload(path, tensors=False)
    assert put == [MANIFEST_FILE]
    store = SnapshotStore(tmp_path / "new", 3)
    remote.restore(store)
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.meta == {"epoch": 1, "evaluations": 2}
    assert (remote.holds(path.name), remote.holds("snapshot-00000009-t9")) == (True, False)


def test_upload_may_be_repeated(uri: str, local: SnapshotStore, tmp_path: Path) -> None:
    remote = RemoteSnapshots(uri, 2)
    path = save(local, 1)
    remote.upload(path)
    remote.upload(path)
    assert restored(uri, tmp_path / "new") == 1


def test_saves_after_a_restore_come_after_what_was_restored(uri: str, local: SnapshotStore, tmp_path: Path) -> None:
    remote = with_copies(uri, local, 1, 2)
    fresh = SnapshotStore(tmp_path / "new", 3)
    remote.restore(fresh)
    remote.upload(save(fresh, 3))
    assert restored(uri, tmp_path / "newer") == 3


def test_interrupted_upload_is_no_snapshot_and_is_cleared_by_the_next(uri: str, local: SnapshotStore, tmp_path: Path) -> None:
    remote = with_copies(uri, local, 1, 2)
    fs, base = fsspec.core.url_to_fs(uri)
    fs.rm(f"{base}/snapshot-00000002-t2/{MANIFEST_FILE}")
    assert restored(uri, tmp_path / "new") == 1
    remote.upload(save(local, 3))
    assert names(uri) == ["snapshot-00000001-t1", "snapshot-00000003-t3"]


def test_damaged_copy_is_skipped_for_the_one_before(
    uri: str, local: SnapshotStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_copies(uri, local, 1, 2)
    fs, base = fsspec.core.url_to_fs(uri)
    fs.pipe_file(f"{base}/snapshot-00000002-t2/{TENSORS_FILE}", b"garbage")
    assert restored(uri, tmp_path / "new") == 1
    assert "snapshot-00000002-t2 cannot be used: tensors.safetensors has 7 bytes" in caplog.text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["snapshot-00000001-t1"]


def test_damaged_copies_only_are_an_error_that_names_each(uri: str, local: SnapshotStore, tmp_path: Path) -> None:
    remote = with_copies(uri, local, 1)
    fs, base = fsspec.core.url_to_fs(uri)
    fs.pipe_file(f"{base}/snapshot-00000001-t1/{TENSORS_FILE}", b"garbage")
    with pytest.raises(SnapshotError, match=r"1 snapshot is in .*, and none can be used \(snapshot-00000001-t1: "):
        remote.restore(SnapshotStore(tmp_path / "new", 3))


@pytest.mark.parametrize("fails", [1, 2])
def test_failed_upload_is_reported_and_leaves_both_sides_usable(
    uri: str, local: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: int
) -> None:
    remote = with_copies(uri, local, 1)
    path = save(local, 2)
    fs, _ = fsspec.core.url_to_fs(uri)
    real = type(fs).put_file
    puts = 0

    def put_file(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal puts
        puts += 1
        if puts == fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "put_file", put_file)
        with pytest.raises(SnapshotError, match=r"spec\.training\.checkpoint\.uri.*No space left on device.*is intact"):
            remote.upload(path)
    assert restored(uri, tmp_path / "new") == 1
    assert "cannot be used" not in caplog.text, "an interrupted upload must not appear as a damaged snapshot"
    remote.upload(path)
    assert restored(uri, tmp_path / "newer") == 2


class DriverError(Exception):
    """As gcsfs raises it: no OSError."""


def test_errors_of_a_drivers_own_are_reported_alike(
    uri: str, local: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteSnapshots(uri, 3)
    path = save(local, 1)
    fs, _ = fsspec.core.url_to_fs(uri)

    def refuse(*args: object, **kwargs: object) -> None:
        raise DriverError("403 Forbidden")

    monkeypatch.setattr(type(fs), "info", refuse)
    with pytest.raises(SnapshotError, match=r"cannot be read: 403 Forbidden"):
        remote.restore(SnapshotStore(tmp_path / "new", 3))
    with pytest.raises(SnapshotError, match=r"could not be copied.*403 Forbidden"):
        remote.upload(path)


@pytest.mark.parametrize("entry", ["remote", MANIFEST_FILE])
def test_an_error_of_a_disk_is_not_taken_for_a_missing_copy(
    local: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    uri = f"file://{tmp_path}/remote"
    remote = with_copies(uri, local, 1, 2, 3, 4, keep=4)
    path = save(local, 5)
    with monkeypatch.context() as patch:
        failing_info(patch, entry)
        with pytest.raises(SnapshotError, match=r"could not be copied.*Input/output error"):
            remote.upload(path)
        with pytest.raises(SnapshotError, match=r"cannot be read.*Input/output error"):
            remote.restore(SnapshotStore(tmp_path / "new", 3))
    assert names(uri) == [f"snapshot-{t:08d}-t{t}" for t in (1, 2, 3, 4, 5)], "the new copy and all before it"


def test_a_file_among_the_copies_is_no_copy(local: SnapshotStore, tmp_path: Path) -> None:
    remote = with_copies(f"file://{tmp_path}/remote", local, 1)
    (tmp_path / "remote" / "snapshot-00000002-t2").write_text("a file")
    assert restored(f"file://{tmp_path}/remote", tmp_path / "new") == 1
    assert not remote.holds("snapshot-00000002-t2")


@pytest.mark.parametrize("bad", ["nosuchscheme://bucket/folder", "gs://"])
def test_uri_without_a_driver_says_what_to_do(bad: str) -> None:
    with pytest.raises(SnapshotError, match="In the image: Install the driver"):
        RemoteSnapshots(bad, 3)
