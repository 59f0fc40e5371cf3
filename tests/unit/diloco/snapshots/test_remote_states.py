"""Copies of what units have stored: a lost volume is filled with the newest usable one of each unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from builders.snapshots import a_stored_state
from diloco.snapshots.remote_folders import RemoteFolders
from diloco.snapshots.remote_states import RemoteStates
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE, SnapshotError
from diloco.snapshots.unit_state_file import check_state
from diloco.snapshots.unit_states import UnitStates


@pytest.fixture
def states(tmp_path: Path) -> UnitStates:
    return UnitStates(tmp_path / "learners", "uid")


def update(uri: str, states: UnitStates) -> None:
    RemoteStates(uri).update(states.newest, states.dropped)


def names(uri: str) -> list[str]:
    fs, base = fsspec.core.url_to_fs(f"{uri}/learners")
    return sorted(str(entry).rpartition("/")[2] for entry in fs.ls(base, detail=False))


def restored(uri: str, folder: Path) -> UnitStates:
    states = UnitStates(folder, "uid")
    RemoteStates(uri).restore(states)
    states.load()
    return states


def damage(uri: str, name: str, file: str) -> None:
    fs, base = fsspec.core.url_to_fs(f"{uri}/learners/{name}/{file}")
    data = bytearray(fs.cat_file(base))
    data[-1] ^= 1
    fs.pipe_file(base, bytes(data))


def test_lost_volume_gets_the_newest_state_of_each_unit(uri: str, states: UnitStates, tmp_path: Path) -> None:
    for unit, t in (("u-0", 8), ("u-1", 8), ("u-0", 16)):
        a_stored_state(states, unit, t=t)
    update(uri, states)
    found = restored(uri, tmp_path / "new")
    assert {state.unit: state.t for state in found.newest} == {"u-0": 16, "u-1": 8}
    for state in found.newest:
        check_state(state)
        kept = states.of(state.unit)
        assert kept is not None
        assert {file.name: file.read_bytes() for file in state.folder.iterdir()} == {
            file.name: file.read_bytes() for file in kept.folder.iterdir()
        }


def test_newer_state_takes_the_place_of_the_copy_before(uri: str, states: UnitStates) -> None:
    remote = RemoteStates(uri)
    for t in (8, 16):
        a_stored_state(states, "u-0", t=t)
        remote.update(states.newest, states.dropped)
    a_stored_state(states, "u-1", t=16)
    remote.update(states.newest, states.dropped)
    assert names(uri) == ["u-0.00000002", "u-1.00000003"]


def test_what_is_there_is_not_copied_again(uri: str, states: UnitStates, monkeypatch: pytest.MonkeyPatch) -> None:
    a_stored_state(states, "u-0", t=8)
    update(uri, states)
    put: list[str] = []
    monkeypatch.setattr(RemoteFolders, "put", lambda _self, folder, _files: put.append(folder.name))
    update(uri, states)
    assert put == []


def test_copies_of_a_unit_whose_states_were_dropped_go(uri: str, states: UnitStates) -> None:
    for unit in ("u-0", "u-1"):
        a_stored_state(states, unit, t=8)
    update(uri, states)
    states.drop(before=24, besides=["u-1"])
    update(uri, states)
    assert names(uri) == ["u-1.00000002"]
    states.forget_dropped(states.dropped)
    a_stored_state(states, "u-0", t=24)
    update(uri, states)
    assert names(uri) == ["u-0.00000003", "u-1.00000002"]


@pytest.mark.parametrize("file", [TENSORS_FILE, "rest.bin", MANIFEST_FILE])
def test_damaged_copy_is_passed_over_and_the_next_state_takes_its_place(uri: str, states: UnitStates, tmp_path: Path, file: str) -> None:
    for unit in ("u-0", "u-1"):
        a_stored_state(states, unit, t=8)
    update(uri, states)
    damage(uri, "u-0.00000001", file)
    found = UnitStates(tmp_path / "new", "uid")
    remote = RemoteStates(uri)
    remote.restore(found)
    found.load()
    assert [state.unit for state in found.newest] == ["u-1"]
    a_stored_state(found, "u-0", t=16)
    remote.update(found.newest, found.dropped)
    assert [state.unit for state in restored(uri, tmp_path / "again").newest] == ["u-0", "u-1"]


def test_interrupted_upload_is_no_state_and_goes_with_the_next(
    uri: str, states: UnitStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_stored_state(states, "u-0", t=8)
    update(uri, states)
    a_stored_state(states, "u-0", t=16)
    fs, _ = fsspec.core.url_to_fs(uri)
    real = type(fs).put_file

    def put_file(self: Any, source: str, *args: Any, **kwargs: Any) -> Any:
        if Path(source).name == MANIFEST_FILE:
            raise ConnectionError("cut")
        return real(self, source, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "put_file", put_file)
        with pytest.raises(SnapshotError, match=r"unit u-0 could not be copied to .*/learners \(spec.training.checkpoint.uri\): cut"):
            update(uri, states)
    assert [state.t for state in restored(uri, tmp_path / "new").newest] == [8]
    a_stored_state(states, "u-0", t=24)
    update(uri, states)
    assert names(uri) == ["u-0.00000003"]


def test_state_that_a_newer_one_replaced_meanwhile_is_passed_over(uri: str, states: UnitStates) -> None:
    old = a_stored_state(states, "u-0", t=8)
    new = a_stored_state(states, "u-0", t=16)
    remote = RemoteStates(uri)
    remote.update([old], ())
    remote.update([new], ())
    assert names(uri) == [new.folder.name]


def test_restore_goes_on_where_a_process_before_it_ended(uri: str, states: UnitStates, tmp_path: Path) -> None:
    for unit in ("u-0", "u-1"):
        a_stored_state(states, unit, t=8)
    update(uri, states)
    found = restored(uri, tmp_path / "new")
    kept = found.of("u-0")
    lost = found.of("u-1")
    assert kept is not None
    assert lost is not None
    for file in lost.folder.iterdir():
        file.unlink()
    lost.folder.rmdir()
    inode = kept.folder.stat().st_ino
    again = restored(uri, tmp_path / "new")
    assert {state.unit for state in again.newest} == {"u-0", "u-1"}
    assert kept.folder.stat().st_ino == inode


def test_nothing_to_restore_is_nothing(uri: str, tmp_path: Path) -> None:
    assert restored(uri, tmp_path / "new").newest == []
