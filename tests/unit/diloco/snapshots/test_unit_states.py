"""States of units on the syncer's volume: what is written comes back, and what is damaged, torn or foreign does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.full_volume import with_free_bytes
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, whole
from diloco.free_space import NoRoom
from diloco.protocol.diloco_pb2 import StateBegin
from diloco.protocol.state_parts import PieceArray, StateError, cut, to_message
from diloco.snapshots import unit_state_file
from diloco.snapshots.store import Unusable
from diloco.snapshots.unit_state_file import StateWriter, StoredState, check_state, read_parts, read_rest
from diloco.snapshots.unit_states import UnitStates
from safetensors.numpy import load_file

LAYOUT = Layout([TensorSpec("a", (3, 4, 5)), TensorSpec("b", (7,)), TensorSpec("c", ())])
VALUES = {
    ("exp_avg", spec.name): np.arange(np.prod(spec.shape), dtype=np.float32).reshape(spec.shape) + 100 * number
    for number, spec in enumerate(LAYOUT.tensors)
}


def begin(unit: str = "v5p-0", t: int = 16, **changes: Any) -> StateBegin:
    arrays = [PieceArray(whole(spec), "exp_avg", "bfloat16") for spec in LAYOUT.tensors]
    usual: dict[str, Any] = {"unit": unit, "attempt": 2, "t": t, "local_step": 20, "inner_state": "torch AdamW"}
    return StateBegin(fingerprint=LAYOUT.fingerprint, arrays=to_message(LAYOUT, arrays), **(usual | changes))


def piece_of(piece: Piece) -> np.ndarray:
    return np.ascontiguousarray(piece.of(VALUES["exp_avg", piece.tensor])).ravel()


def put_all(writer: StateWriter, most: int = 6) -> None:
    for pieces in cut(LAYOUT.tensors, most):
        arrays = [PieceArray(piece, "exp_avg", "bfloat16") for piece in pieces]
        writer.put(arrays, np.concatenate([piece_of(piece) for piece in pieces]))
    writer.rest(memoryview(b"small rest"))


def store(states: UnitStates, **changes: Any) -> StoredState:
    writer = states.begin(begin(**changes), LAYOUT)
    put_all(writer)
    return states.commit(writer)


@pytest.fixture
def states(tmp_path: Path) -> UnitStates:
    return UnitStates(tmp_path / "learners", "uid")


@pytest.mark.parametrize("most", [1, 3, 6, 1000])
def test_a_state_in_pieces_of_any_size_is_stored_as_whole_tensors(states: UnitStates, most: int) -> None:
    writer = states.begin(begin(), LAYOUT)
    put_all(writer, most)
    state = states.commit(writer)
    found = load_file(state.folder / "tensors.safetensors")
    assert found.keys() == {f"exp_avg/{spec.name}" for spec in LAYOUT.tensors}
    for (name, tensor), value in VALUES.items():
        np.testing.assert_array_equal(found[f"{name}/{tensor}"], value)


def test_pieces_may_come_in_any_order_and_be_any_rectangles(states: UnitStates) -> None:
    writer = states.begin(begin(), LAYOUT)
    pieces = [Piece("a", (1, 1, 2), (2, 2, 3)), Piece("b", (3,), (4,))]
    covered = {piece.tensor: np.zeros(VALUES["exp_avg", piece.tensor].shape, bool) for piece in pieces}
    for piece in pieces:
        writer.put([PieceArray(piece, "exp_avg", "bfloat16")], piece_of(piece))
        piece.of(covered[piece.tensor])[...] = True
    written = (writer.folder / "tensors.safetensors").read_bytes()
    writer.rest(memoryview(b""))
    with pytest.raises(StateError, match="52 elements of the state did not come"):  # 60 + 7 + 1 of the model, but 12 and 4
        states.commit(writer)
    states.abandon(writer)
    length = 8 + int.from_bytes(written[:8], "little")
    flat = np.frombuffer(written[length : length + 4 * 60], np.float32).reshape(3, 4, 5)
    np.testing.assert_array_equal(flat[covered["a"]], VALUES["exp_avg", "a"][covered["a"]])
    assert not flat[~covered["a"]].any()


def test_what_is_read_are_the_parts_that_a_peer_would_send(states: UnitStates, monkeypatch: pytest.MonkeyPatch) -> None:
    state = store(states)
    monkeypatch.setattr(unit_state_file, "cut", lambda tensors: cut(tensors, 6))
    found = list(read_parts(state, LAYOUT))
    assert [[one.piece for one in arrays] for arrays, _ in found] == cut(LAYOUT.tensors, 6)
    for arrays, payload in found:
        np.testing.assert_array_equal(np.frombuffer(payload, np.float32), np.concatenate([piece_of(one.piece) for one in arrays]))
        assert {one.dtype for one in arrays} == {"bfloat16"}
    assert read_rest(state) == b"small rest"
    check_state(state)


def test_the_next_process_finds_the_newest_state_of_each_unit_and_nothing_that_was_torn(states: UnitStates, tmp_path: Path) -> None:
    store(states)
    store(states, t=32)
    store(states, unit="h100-0")
    states.begin(begin(), LAYOUT).close()  # and then the process dies
    found = UnitStates(tmp_path / "learners", "uid")
    found.load()
    newest = found.of("v5p-0")
    assert newest is not None
    assert (newest.t, newest.attempt, newest.local_step, newest.kind) == (32, 2, 20, "torch AdamW")
    assert found.of("h100-0") is not None
    assert found.of("v5p-1") is None
    assert len(list((tmp_path / "learners").iterdir())) == 2
    assert store(found, t=48).folder.name > newest.folder.name


@pytest.mark.parametrize("file", ["tensors.safetensors", "rest.bin", "manifest.json"])
def test_a_changed_byte_is_found(states: UnitStates, file: str) -> None:
    state = store(states)
    data = bytearray((state.folder / file).read_bytes())
    data[-3] ^= 1
    (state.folder / file).write_bytes(data)
    with pytest.raises(Unusable):
        check_state(state)


def test_states_go_with_the_snapshots_of_their_time_unless_the_unit_is_there(states: UnitStates) -> None:
    for unit in ("a", "b", "c"):
        store(states, unit=unit, t=48 if unit == "c" else 16)
    states.drop(32, besides=["b"])
    assert [states.of(unit) is not None for unit in ("a", "b", "c")] == [False, True, True]


def announced(*names: str, tensor: int = 1, dtype: str = "float32") -> StateBegin:
    arrays = [PieceArray(whole(LAYOUT.tensors[tensor]), name, dtype) for name in names]
    return StateBegin(unit="a", t=16, fingerprint=LAYOUT.fingerprint, arrays=to_message(LAYOUT, arrays))


def test_the_model_bounds_what_a_unit_stores(states: UnitStates) -> None:
    with pytest.raises(StateError, match="keeps 9 arrays of one parameter; 8 can be stored"):
        states.begin(announced(*(f"m{number}" for number in range(9))), LAYOUT)
    for name in ("a/b", "", "\n", "x" * 65):
        with pytest.raises(StateError, match="no parameters" if not name else "names no array"):
            states.begin(announced(name), LAYOUT)
    with pytest.raises(StateError, match="no type of one"):
        states.begin(announced("m", dtype="x" * 65), LAYOUT)
    writer = states.begin(announced("m"), LAYOUT)
    tensor = PieceArray(whole(LAYOUT.tensors[1]), "m", "float32")
    writer.put([tensor], np.zeros(7, np.float32))
    with pytest.raises(StateError, match="more of the state comes than was announced"):
        writer.put([tensor], np.zeros(7, np.float32))
    states.abandon(writer)


def test_what_is_abandoned_is_written_to_no_more_and_a_late_state_takes_no_newer_ones_place(states: UnitStates) -> None:
    late = states.begin(begin(t=16), LAYOUT)
    put_all(late)
    newest = store(states, t=32)
    with pytest.raises(StateError, match="has stored a newer state meanwhile"):
        states.commit(late)
    states.abandon(late)
    assert states.of("v5p-0") == newest
    writer = states.begin(begin(t=48), LAYOUT)
    states.abandon(writer)
    with pytest.raises(StateError, match="is not wanted any more"):  # a thread that was about to write: the file's number may be another's
        put_all(writer)


def test_a_state_is_refused_that_is_none(states: UnitStates) -> None:
    with pytest.raises(StateError, match="no name of a unit"):
        states.begin(begin(unit="../up"), LAYOUT)
    parameter = to_message(LAYOUT, [PieceArray(whole(LAYOUT.tensors[0]), "", "float32")])
    with pytest.raises(StateError, match="no parameters"):
        states.begin(StateBegin(unit="a", arrays=parameter), LAYOUT)
    twice = to_message(LAYOUT, [PieceArray(whole(LAYOUT.tensors[1]), "exp_avg", "float32")] * 2)
    with pytest.raises(StateError, match="each array once"):
        states.begin(StateBegin(unit="a", arrays=twice), LAYOUT)
    writer = states.begin(begin(), LAYOUT)
    with pytest.raises(StateError, match="was not announced"):
        writer.put([PieceArray(whole(LAYOUT.tensors[1]), "exp_avg_sq", "float32")], np.zeros(7, np.float32))
    states.abandon(writer)
    assert states.of("v5p-0") is None


def test_too_little_room_for_a_state_is_told_in_figures_and_leaves_nothing_behind(
    states: UnitStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """68 elements of four bytes, on a volume with 271."""
    before = store(states)
    with_free_bytes(monkeypatch, 271)
    with pytest.raises(NoRoom, match="it needs 272 bytes, and 271 bytes are free"):
        states.begin(begin(t=32), LAYOUT)
    assert states.of("v5p-0") == before
    assert [path.name for path in (tmp_path / "learners").iterdir()] == [before.folder.name]
    with_free_bytes(monkeypatch, 272)
    states.abandon(states.begin(begin(t=32), LAYOUT))


def test_a_full_volume_leaves_nothing_behind_and_the_state_before_it(
    states: UnitStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store(states)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        states.begin(begin(t=32), LAYOUT)
    assert states.of("v5p-0") == before
    assert [path.name for path in (tmp_path / "learners").iterdir()] == [before.folder.name]
