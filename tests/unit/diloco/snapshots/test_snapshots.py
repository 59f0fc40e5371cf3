from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.full_volume import with_free_bytes
from diloco.snapshots import store as snapshots
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE, SnapshotError, SnapshotStore, Unusable, parse_manifest
from diloco.snapshots.tensor_file import TensorParts
from numpy.typing import NDArray

type Tensors = dict[str, NDArray[Any]]


def state(t: int) -> Tensors:
    """A state whose values are those of its step only."""
    return {
        "layers.0.weight": np.full((4, 3), t, dtype=np.float32),
        "steps": np.array([t, 2**20 + t], dtype=np.float32),
        "scalar": np.array(t, dtype=np.float32),
        "empty": np.zeros((0, 5), dtype=np.float32),
    }


def store_with(root: Path, *steps: int, keep: int = 10) -> SnapshotStore:
    store = SnapshotStore(root, keep)
    for t in steps:
        store.save(t, TensorParts([state(t)]), {"epoch": t})
    return store


def assert_is_state(tensors: Mapping[str, NDArray[Any]], t: int) -> None:
    assert tensors.keys() == state(t).keys()
    for name, expected in state(t).items():
        assert tensors[name].dtype == expected.dtype
        np.testing.assert_array_equal(tensors[name], expected)


def steps_in(store: SnapshotStore) -> list[int]:
    return [int(path.name.rpartition("t")[2]) for path in store.paths()]


# --- what is saved comes back -----------------------------------------------------------------------------------------
def test_newest_snapshot_comes_back_bit_for_bit(tmp_path: Path) -> None:
    odd = state(240) | {
        "odd": np.array([np.nan, -0.0, np.inf, 1e-45], dtype=np.float32),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    SnapshotStore(tmp_path, 3).save(240, TensorParts([odd]), {"ledger": {"next": 7, "open": [[1, 2]]}, "name": "é"})
    loaded = SnapshotStore(tmp_path, 3).load_newest()
    assert loaded is not None
    assert (loaded.t, loaded.meta, loaded.skipped) == (240, {"ledger": {"next": 7, "open": [[1, 2]]}, "name": "é"}, {})
    for name, tensor in odd.items():
        assert loaded.tensors[name].tobytes() == tensor.tobytes()
        assert loaded.tensors[name].shape == tensor.shape
        assert loaded.tensors[name].flags.writeable


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert SnapshotStore(tmp_path, 3).load_newest() is None
    assert SnapshotStore(tmp_path / "not" / "there", 3).load_newest() is None


def test_a_directory_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(tmp_path, 100)

    def refused(folder: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    # Tests may run as root, whom permissions do not stop.
    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(SnapshotError, match=f"the snapshots in {tmp_path} cannot be read: Permission denied. Check the syncer's volume"):
        store.load_newest()


def test_other_things_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    store = store_with(tmp_path, 1, 2, keep=1)
    assert steps_in(store) == [2]
    assert (tmp_path / "lost+found").is_dir()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_newest_is_the_last_saved_also_after_a_roll_back(tmp_path: Path) -> None:
    store = store_with(tmp_path, 100, 200, 150)
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.t == 150


def test_save_of_the_same_step_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    store = store_with(tmp_path, 50, 100)
    store.save(100, TensorParts([state(7)]), {})
    assert steps_in(store) == [100, 50]
    loaded = store.load_newest()
    assert loaded is not None
    assert_is_state(loaded.tensors, 7)


@pytest.mark.parametrize("restarted", [False, True])
def test_save_of_the_same_tensors_writes_only_the_manifest(tmp_path: Path, restarted: bool) -> None:
    store = store_with(tmp_path, 50, 100)
    (path, older), file = store.paths(), store.paths()[0] / TENSORS_FILE
    before = file.stat()
    if restarted:
        store = SnapshotStore(tmp_path, 3)
        store.load_newest()
    assert store.save(100, TensorParts([state(100)]), {"evaluations": {"u": 0.5}}) == path
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(entry.name for entry in path.iterdir()) == [MANIFEST_FILE, TENSORS_FILE]
    assert sorted(tmp_path.iterdir()) == [older, path]
    loaded = SnapshotStore(tmp_path, 3).load_newest()
    assert loaded is not None
    assert (loaded.path, loaded.skipped, loaded.meta) == (path, {}, {"evaluations": {"u": 0.5}})


def test_damaged_snapshot_does_not_supersede_an_earlier_one_of_its_step(tmp_path: Path) -> None:
    """The process died after a save and before the superseded one was removed, and then the disk returned other bytes."""
    store_with(tmp_path, 100)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(SnapshotStore, "drop_old", lambda _: None)
        store_with(tmp_path, 100)
    store = SnapshotStore(tmp_path, 3)
    flip_a_bit(store.paths()[0] / TENSORS_FILE)
    assert store.load_newest() is not None
    store.drop_old()
    assert steps_in(store) == [100, 100]
    store.save(200, TensorParts([state(200)]), {})
    assert steps_in(store) == [200, 100, 100]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    assert steps_in(store_with(tmp_path, *range(12), keep=3)) == [11, 10, 9]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"snapshot-{n:08d}-t{n - 1}" for n in (10, 11, 12)]


def test_damaged_snapshot_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2, 3, keep=2)  # keeps 2 and 3
    flip_a_bit(store.paths()[0] / TENSORS_FILE)
    store = SnapshotStore(tmp_path, 2)
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.t == 2
    store.save(4, TensorParts([state(4)]), {})
    assert 2 in steps_in(store)
    store.save(5, TensorParts([state(5)]), {})
    assert steps_in(store) == [5, 4]


# --- what is damaged is skipped and named -----------------------------------------------------------------------------
def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def edit_manifest(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest | changes))


def edit_value(folder: Path, text: str) -> None:
    """Put this text in the place of a number of the manifest."""
    manifest, count = re.subn(r'("epoch": ?)480', lambda found: found[1] + text, (folder / MANIFEST_FILE).read_text())
    assert count == 1
    (folder / MANIFEST_FILE).write_text(manifest)


def replace_tensors(folder: Path, data: bytes) -> None:
    """And make a manifest for these very bytes, as a program with another idea of the format would."""
    (folder / TENSORS_FILE).write_bytes(data)
    manifest = json.loads((folder / MANIFEST_FILE).read_text()) | {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del manifest["manifestSha256"]
    manifest["manifestSha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


def replace_header(folder: Path, header: bytes) -> None:
    replace_tensors(folder, len(header).to_bytes(8, "little") + header)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DEEP = 200_000
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda folder: truncate(folder / TENSORS_FILE), "truncated or overwritten"),
    "emptied": (lambda folder: os.truncate(folder / TENSORS_FILE, 0), "has 0 bytes"),
    "bit flipped": (lambda folder: flip_a_bit(folder / TENSORS_FILE), "its bytes have changed"),
    "no tensors": (lambda folder: (folder / TENSORS_FILE).unlink(), "tensors.safetensors is missing"),
    "no manifest": (lambda folder: (folder / MANIFEST_FILE).unlink(), "manifest.json is missing"),
    "manifest truncated": (lambda folder: truncate(folder / MANIFEST_FILE), "manifest.json is not JSON"),
    "manifest not UTF-8": (lambda folder: (folder / MANIFEST_FILE).write_bytes(b"\xff\xfe"), "manifest.json is not JSON"),
    "manifest of another kind": (lambda folder: (folder / MANIFEST_FILE).write_text("[]"), "names no format version"),
    "unknown version": (lambda folder: edit_manifest(folder, formatVersion=7), "its format version is 7, this program reads 1"),
    "meta changed": (lambda folder: edit_manifest(folder, meta={"epoch": 9}), "its content has changed"),
    "step changed": (lambda folder: edit_manifest(folder, t=9), "its content has changed"),
    "manifest is a directory": (lambda folder: replace_by_folder(folder / MANIFEST_FILE), "is no regular file"),
    "number beyond all floats": (lambda folder: edit_value(folder, "3e768"), "does not have its own checksum"),
    "number below all floats": (lambda folder: edit_value(folder, "-2e2896"), "does not have its own checksum"),
    "NaN": (lambda folder: edit_value(folder, "NaN"), "does not have its own checksum"),
    "many digits": (lambda folder: edit_value(folder, "9" * 5000), "is not JSON"),
    "deep value": (lambda folder: edit_value(folder, "[" * DEEP + "]" * DEEP), "is not JSON"),
    "deep manifest": (lambda folder: (folder / MANIFEST_FILE).write_text("[" * DEEP), "is not JSON"),
    "no safetensors": (lambda folder: replace_tensors(folder, b"x" * 16), "cannot be read"),
    "deep header": (lambda folder: replace_header(folder, b"[" * DEEP), "cannot be read"),
    "endless shape": (
        lambda folder: replace_header(folder, b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,0]}}'),
        "cannot be read",
    ),
}


@pytest.mark.parametrize(("damage", "why"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_snapshot_is_skipped_for_the_one_before_and_damaged_everything_is_an_error_that_names_each(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    store = store_with(tmp_path, 240, 480)
    newest, older = store.paths()
    damage(newest)
    loaded = store.load_newest()
    assert loaded is not None
    assert (loaded.t, loaded.meta) == (240, {"epoch": 240})
    assert_is_state(loaded.tensors, 240)
    assert list(loaded.skipped) == [newest.name]
    assert why in loaded.skipped[newest.name]
    flip_a_bit(older / TENSORS_FILE)
    with pytest.raises(SnapshotError) as caught:
        store.load_newest()
    message = str(caught.value)
    assert "snapshot-00000001-t240" in message
    assert "snapshot-00000002-t480" in message
    assert why in message
    assert "empty the directory if the job shall start afresh" in message


@pytest.mark.parametrize("byte", b'e9[{"- \x00\xff', ids=repr)
def test_no_change_of_one_byte_of_a_manifest_is_more_than_unusable(tmp_path: Path, byte: int) -> None:
    text = (store_with(tmp_path, 480).paths()[0] / MANIFEST_FILE).read_bytes()
    whole = parse_manifest(text)
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] = byte
        try:
            assert parse_manifest(bytes(changed)) == whole  # white space, or what was there before
        except Unusable:
            continue


# --- a crash at any point ---------------------------------------------------------------------------------------------
class Crash(BaseException):
    """The process died here: nothing after it runs, no clean-up either."""


STEPS = ("mkdir", "fsync", "replace", "rmtree")


class Machine:
    """Lets a process die before or after the n-th call that changes the disk; from then on nothing changes it any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, die_at: int, *, after: bool) -> None:
        self.calls: list[str] = []
        self._die_at = die_at
        self._after = after
        self._dead = False
        monkeypatch.setattr(os, "fsync", self._step("fsync", os.fsync))
        monkeypatch.setattr(os, "replace", self._step("replace", os.replace))
        monkeypatch.setattr(os, "mkdir", self._step("mkdir", os.mkdir))
        monkeypatch.setattr(shutil, "rmtree", self._step("rmtree", shutil.rmtree))

    @property
    def died(self) -> bool:
        return self._dead

    def _step(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._dead:
                raise Crash
            self.calls.append(name)
            dies = len(self.calls) == self._die_at
            if dies and not self._after:
                self._dead = True
                raise Crash
            result = real(*args, **kwargs)
            if dies:
                self._dead = True
                raise Crash
            return result

        return step


def crash_points(tmp_path: Path) -> Iterator[tuple[int, bool]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        store = store_with(tmp_path / "probe", 1, 2, keep=2)
        machine = Machine(monkeypatch, 0, after=False)
        store.save(3, TensorParts([state(3)]), {})
        calls = machine.calls
    assert {"mkdir", "fsync", "replace", "rmtree"} <= set(calls)
    for at in range(1, len(calls) + 1):
        yield at, False
        yield at, True


@pytest.mark.slow
def test_crash_between_any_two_steps_leaves_the_last_or_the_new_snapshot(tmp_path: Path) -> None:
    outcomes = set()
    for at, after in crash_points(tmp_path):
        root = tmp_path / f"{at}-{after}"
        store_with(root, 1, 2, keep=2)
        with pytest.MonkeyPatch.context() as monkeypatch:
            machine = Machine(monkeypatch, at, after=after)
            with pytest.raises(Crash):
                SnapshotStore(root, 2).save(3, TensorParts([state(3)]), {"epoch": 3})
            assert machine.died
        store = SnapshotStore(root, 2)
        loaded = store.load_newest()
        assert loaded is not None
        assert not loaded.skipped, "a crash must not leave anything that appears damaged"
        assert loaded.t in (2, 3)
        assert_is_state(loaded.tensors, loaded.t)
        outcomes.add(loaded.t)
        # The next save works, and clears away what the crash left.
        store.save(4, TensorParts([state(4)]), {})
        assert steps_in(store)[0] == 4
        assert len(list(root.iterdir())) == 2
    assert outcomes == {2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False], ids=["same tensors", "other tensors"])
def test_crash_during_a_second_save_of_a_step_leaves_the_old_or_the_new_and_a_start_leaves_one(tmp_path: Path, same: bool) -> None:
    outcomes = set()
    for at, after in crash_points(tmp_path):
        root = tmp_path / f"{at}-{after}"
        store = store_with(root, 1, 2, keep=2)
        with pytest.MonkeyPatch.context() as monkeypatch:
            machine = Machine(monkeypatch, at, after=after)
            try:
                store.save(2, TensorParts([state(2 if same else 7)]), {"epoch": 3})
            except Crash:
                assert machine.died
        store = SnapshotStore(root, 2)
        loaded = store.load_newest()
        assert loaded is not None
        assert not loaded.skipped, "a crash must not leave anything that appears damaged"
        store.drop_old()
        assert steps_in(store) == [2, 1]
        outcomes.add(loaded.meta.get("epoch"))
        assert_is_state(loaded.tensors, 7 if loaded.meta.get("epoch") == 3 and not same else 2)
    assert outcomes == {2, 3}


def test_nothing_is_renamed_into_place_before_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 0, after=False)
    SnapshotStore(tmp_path, 1).save(1, TensorParts([state(1)]), {})
    # Tensors, manifest, their folder; the rename; the folder that holds the name.
    assert [call for call in machine.calls if call in ("fsync", "replace")] == ["fsync", "fsync", "fsync", "replace", "fsync"]


def test_a_snapshot_from_another_place_is_on_disk_before_it_is_renamed_into_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = store_with(tmp_path / "source", 7).paths()
    store = SnapshotStore(tmp_path / "root", 1)
    synced: list[tuple[int, bool]] = []
    real = os.fsync

    def copy(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, bool(store.paths())))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    adopted = store.adopt(source.name, copy)
    inode = {path: path.stat().st_ino for path in (adopted / TENSORS_FILE, adopted / MANIFEST_FILE, adopted, adopted.parent)}
    assert {(number, False) for path, number in inode.items() if path != adopted.parent} <= set(synced)
    assert synced[-1] == (inode[adopted.parent], True), "the folder that holds the name comes after the rename"


# --- the operating system refuses ---------------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
def test_refused_write_leaves_earlier_snapshots_and_nothing_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    store = store_with(tmp_path, 1, 2)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(SnapshotError) as caught:
            store.save(3, TensorParts([state(3)]), {})
    message = str(caught.value)
    assert "the snapshot of step 3 could not be written" in message
    assert os.strerror(number) in message
    assert "the 2 before it are intact" in message
    assert ("spec.syncer.storage.size" in message) == (number != errno.EIO)
    assert len(list(tmp_path.iterdir())) == 2
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.t == 2
    store.save(3, TensorParts([state(3)]), {})
    assert steps_in(store) == [3, 2, 1]


def test_too_little_room_is_told_in_figures_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MiB of values and 1 MiB for the manifest, on a volume with 2 MiB."""
    store = store_with(tmp_path, 1)
    large = {"large": np.ones(1 << 20, dtype=np.float32)}
    with monkeypatch.context() as patch:
        with_free_bytes(patch, 2 << 20)
        patch.setattr(snapshots, "write_tensors", lambda *_: pytest.fail("it was written"))
        with pytest.raises(SnapshotError) as caught:
            store.save(2, TensorParts([large]), {})
    assert str(caught.value) == (
        f"the snapshot of step 2 could not be written to {tmp_path}: it needs 5.0 MiB, and 2.0 MiB are free; the one before it is intact. "
        "Give the syncer's volume more room (spec.syncer.storage.size) or keep fewer (spec.training.checkpoint.keep)."
    )
    assert steps_in(store) == [1]
    assert len(list(tmp_path.iterdir())) == 1
    store.save(2, TensorParts([large]), {})
    assert steps_in(store) == [2, 1]


def test_old_snapshot_that_cannot_be_removed_does_not_fail_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_with(tmp_path, 1, 2, keep=2)
    real = os.replace

    def refuse_old(source: Path, target: Path) -> None:
        if "old-" in str(target):
            raise PermissionError(errno.EACCES, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse_old)
    store.save(3, TensorParts([state(3)]), {})
    assert steps_in(store) == [3, 2, 1]
    assert "snapshot-00000001-t1 could not be removed" in caplog.text


# --- what cannot be saved ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tensors", "meta", "message"),
    [
        ({"x": np.zeros(2, dtype=np.float64)}, {}, "float32 only"),
        ({"__metadata__": np.zeros(2, dtype=np.float32)}, {}, "reserves that name"),
        ({}, {"loss": float("nan")}, "not JSON compliant"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_without_a_trace(tmp_path: Path, tensors: Tensors, meta: Any, message: str) -> None:
    store = store_with(tmp_path, 1)
    with pytest.raises(ValueError, match=message):
        store.save(2, TensorParts([tensors]), meta)
    assert len(list(tmp_path.iterdir())) == 1


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be at least 1"):
        SnapshotStore(tmp_path, 0)
