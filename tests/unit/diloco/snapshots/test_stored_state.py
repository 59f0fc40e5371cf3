"""States that units store at a URI: blocks, and a manifest that makes them visible."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.failing_disk import failing_info
from builders.snapshots import MODEL
from builders.stored_states import a_stored_state
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.snapshots import store, stored_state
from diloco.snapshots.store import MANIFEST_FILE, SnapshotError, Unusable
from diloco.snapshots.stored_state import (
    Block,
    BlockWriter,
    StoredState,
    UnitFolder,
    blocks_from_bytes,
    blocks_to_bytes,
    check_fits,
    name_of,
)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


@pytest.fixture
def folder(uri: str) -> UnitFolder:
    return UnitFolder(f"{uri}/learners/a")


def test_newest_state_is_found_with_all_that_was_stored(uri: str, folder: UnitFolder) -> None:
    assert folder.newest() is None
    a_stored_state(uri, "a", t=8, attempt=1, local_step=900)
    stored = a_stored_state(uri, "a", t=16, attempt=2, local_step=5)
    found = folder.newest()
    assert found == stored
    assert folder.read_rest(stored) == b"rest"
    (block,) = stored.blocks
    np.testing.assert_array_equal(np.frombuffer(folder.read(stored, block.file, block.bytes, block.sha256), "<f4"), np.ones(12))


def test_state_takes_the_place_of_those_before_but_not_of_a_later_attempts(uri: str, tmp_path: Path) -> None:
    a_stored_state(uri, "a", t=8, attempt=2, local_step=5)
    later = a_stored_state(uri, "a", t=8, attempt=3, local_step=1)
    a_stored_state(uri, "a", t=16, attempt=2, local_step=9)
    assert {path.name for path in (tmp_path / "learners/a").iterdir()} == {later.name, "000002-0000000009"}
    newest = a_stored_state(uri, "a", t=24, attempt=3, local_step=9)
    assert [path.name for path in (tmp_path / "learners/a").iterdir()] == [newest.name]


def test_state_of_a_process_that_counts_from_0_again_takes_the_place_of_one_of_more_steps(
    uri: str, folder: UnitFolder, tmp_path: Path
) -> None:
    a_stored_state(uri, "a", t=16, attempt=1, local_step=5000)
    under_way = name_of(1, 6000)
    folder.write(under_way, "00000-000000.bin", b"of a process that may still write")
    newest = a_stored_state(uri, "a", t=24, attempt=1, local_step=240)
    assert {path.name for path in (tmp_path / "learners/a").iterdir()} == {newest.name, under_way}
    assert folder.newest() == newest


def test_state_without_a_manifest_is_none_and_one_with_half_of_it_gives_way_to_the_one_before(
    uri: str, folder: UnitFolder, tmp_path: Path
) -> None:
    first = a_stored_state(uri, "a", t=8, local_step=1)
    torn = tmp_path / "learners/a/000001-0000000002"
    shutil.copytree(tmp_path / "learners/a" / first.name, torn)
    (torn / "manifest.json").unlink()
    assert folder.newest() == first
    (torn / "manifest.json").write_text("{")
    assert folder.newest() == first
    (tmp_path / "learners/a" / first.name / "manifest.json").unlink()
    with pytest.raises(Unusable, match="is not JSON"):
        folder.newest()


def test_state_that_goes_while_it_is_read_gives_way_to_the_one_before(
    uri: str, folder: UnitFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "learners/a" / a_stored_state(uri, "a", t=8, attempt=2).name
    before = a_stored_state(uri, "a", t=8, attempt=1)
    size_of = store.file_size

    def and_goes(fs: Any, path: str, file: str) -> int:
        size = size_of(fs, path, file)
        shutil.rmtree(gone, ignore_errors=True)
        return size

    monkeypatch.setattr(store, "file_size", and_goes)
    assert folder.newest() == before
    assert not gone.exists()


def test_blocks_are_written_when_they_are_full_and_pause_for_three_quarters_of_the_time(
    folder: UnitFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_state, "BLOCK_BYTES", 32)
    pauses: list[float] = []
    clock = iter(range(100))
    writer = BlockWriter(folder, "000001-0000000001", rank=3, pause=pauses.append, now=lambda: float(next(clock)))
    pieces = [PieceArray(Piece("w", (row, 0), (1, 3)), "momentum", "float32") for row in range(4)]
    for piece in pieces:
        writer.add([piece], np.full(3, piece.piece.start[0], np.float32))
    blocks = writer.finish()
    assert [(block.file, block.bytes, len(block.arrays)) for block in blocks] == [("00003-000000.bin", 36, 3), ("00003-000001.bin", 12, 1)]
    assert pauses == [3.0, 3.0]
    assert blocks_from_bytes(blocks_to_bytes(blocks)) == blocks


def a_block(*arrays: PieceArray, size: int | None = None) -> Block:
    return Block("00000-000000.bin", 4 * sum(one.piece.elements for one in arrays) if size is None else size, "", arrays)


def rows(first: int, count: int, name: str = "momentum", tensor: str = "w") -> PieceArray:
    return PieceArray(Piece(tensor, (first, 0), (count, 3)), name, "float32")


WHOLE = StoredState("a", 1, 8, 1, 1, "torch AdamW", MODEL.fingerprint, (4, ""), [a_block(rows(0, 4))])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"unit": "b"}, "is of unit b"),
        ({"kind": "torch SGD"}, "is the state of torch SGD"),
        ({"fingerprint": Layout([TensorSpec("w", (5, 3))]).fingerprint}, "is of another model"),
        ({"blocks": [a_block(rows(0, 3))]}, "has 9 elements of momentum of w, whose shape is"),
        ({"blocks": [a_block(rows(0, 4)), a_block(rows(0, 1))]}, "has 15 elements of momentum of w"),
        ({"blocks": [a_block(rows(0, 4, name=""))]}, "holds something else than what the optimizer keeps"),
        ({"blocks": [a_block(rows(0, 4, tensor="v"))]}, "holds something else than what the optimizer keeps"),
        ({"blocks": [a_block(rows(2, 4))]}, "holds something else than what the optimizer keeps"),
        ({"blocks": [a_block(rows(0, 4), size=1 << 40)]}, "says that 00000-000000.bin has 1099511627776 bytes"),
    ],
)
def test_state_of_something_else_or_of_less_is_refused_with_the_reason(changes: dict[str, Any], why: str) -> None:
    check_fits(WHOLE, "a", "torch AdamW", MODEL)
    with pytest.raises(StateError, match=f"what the unit has stored at outer step 8 {why}"):
        check_fits(replace(WHOLE, **changes), "a", "torch AdamW", MODEL)


def more_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"?")


def fewer_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"!")


@pytest.mark.parametrize("file", ["00000-000000.bin", "rest.bin"])
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (more_bytes, "at most are expected"),
        (fewer_bytes, "truncated or overwritten"),
        (other_bytes, "does not have the checksum of its manifest"),
        (Path.unlink, "is missing"),
    ],
)
def test_changed_file_is_found(uri: str, folder: UnitFolder, tmp_path: Path, file: str, damage: Callable[[Path], None], why: str) -> None:
    state = a_stored_state(uri, "a", t=8)
    damage(tmp_path / "learners/a" / state.name / file)
    (block,) = state.blocks
    with pytest.raises(Unusable, match=f"{file} .*{why}"):
        folder.read_rest(state) if file == "rest.bin" else folder.read(state, block.file, block.bytes, block.sha256)


@pytest.mark.parametrize("file", ["../../../etc/passwd", "rest.bin/..", "00000-000000.bin/../../x"])
def test_manifest_names_no_file_outside_its_folder(file: str) -> None:
    with pytest.raises(ValueError, match="names no block"):
        Block.from_json([file, 4, "", []])


def test_manifest_that_is_too_large_is_neither_read_nor_written(uri: str, folder: UnitFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    a_stored_state(uri, "a", t=8)
    monkeypatch.setattr(stored_state, "MOST_MANIFEST", 10)
    with pytest.raises(Unusable, match="10 at most are expected"):
        folder.newest()
    with pytest.raises(SnapshotError, match="10 at most are read"):
        a_stored_state(uri, "a", t=16, local_step=5)
    monkeypatch.undo()
    found = folder.newest()
    assert found is not None
    assert found.t == 8


def test_blocks_of_a_try_that_failed_go_when_the_next_begins(uri: str, folder: UnitFolder, tmp_path: Path) -> None:
    whole = a_stored_state(uri, "a", t=8, attempt=1, local_step=900)
    torn = name_of(1, 1000)
    folder.write(torn, "00000-000000.bin", b"torn")
    folder.begin(name_of(1, 1100))
    assert folder.newest() == whole
    assert not (tmp_path / "learners" / "a" / torn).exists()


def test_an_error_of_a_disk_is_not_taken_for_a_missing_state(
    uri: str, folder: UnitFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = a_stored_state(uri, "a", t=8, attempt=1, local_step=900)
    with monkeypatch.context() as patch:
        failing_info(patch, MANIFEST_FILE)
        with pytest.raises(OSError, match="Input/output error"):
            folder.newest()
        folder.begin(name_of(1, 1100))
    assert folder.newest() == whole


def test_numbers_that_are_not_finite_are_not_stored(folder: UnitFolder) -> None:
    writer = BlockWriter(folder, name_of(1, 2), 0)
    with pytest.raises(StateError, match="not finite"):
        writer.add([], np.array([1.0, np.inf], np.float32))
