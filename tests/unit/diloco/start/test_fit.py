"""Whether a model is the one that a job trains, and the job's parameters from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.snapshots import a_model, save_snapshot
from diloco.algorithm.fragments import make_fragments, unpack
from diloco.algorithm.layout import FrozenTensor, Layout, TensorSpec
from diloco.snapshots.store import TENSORS_FILE
from diloco.start.fit import misfit, read_values, unused
from diloco.start.source import Source, StartError, open_source
from safetensors.numpy import save_file


def a_source(folder: Path, **arrays: np.ndarray[Any, Any]) -> Source:
    save_file(a_model(2) | arrays, folder / "m.safetensors")
    return open_source(str(folder / "m.safetensors"))


def a_layout(*frozen: FrozenTensor, **more: tuple[int, ...]) -> Layout:
    shapes = {name: array.shape for name, array in a_model().items()} | more
    return Layout((TensorSpec(name, shape, embedding=name == "layers.0.weight") for name, shape in shapes.items()), frozen)


@pytest.mark.parametrize("fragments", [1, 3])
def test_every_fragment_gets_its_tensors(tmp_path: Path, fragments: int) -> None:
    source, cut = a_source(tmp_path), make_fragments(a_layout(), fragments)
    values = read_values(source, cut)
    found = {name: tensor for fragment, value in zip(cut, values, strict=True) for name, tensor in unpack(fragment, value).items()}
    assert found.keys() == a_model().keys()
    for name, array in a_model(2).items():
        np.testing.assert_array_equal(found[name], array)


def test_marks_that_no_file_has_are_the_learners_own_affair(tmp_path: Path) -> None:
    assert misfit(a_source(tmp_path), a_layout()) == ""


def test_tensors_that_are_missing_or_of_another_shape_or_type_are_named(tmp_path: Path) -> None:
    source = a_source(tmp_path, ids=np.zeros(2, np.int64))
    layout = a_layout(head=(4, 3), scale=(2,), ids=(2,))
    assert misfit(source, layout) == (
        "tensor head: (4,3) here, not there; "
        "tensor ids: I64 there, which is none of F64, F32, F16, BF16; "
        "tensor scale: shape (2) here, () there"
    )


def test_of_many_tensors_that_do_not_fit_ten_are_named(tmp_path: Path) -> None:
    layout = a_layout(**{f"more{number:02}": (1,) for number in range(13)})
    said = misfit(a_source(tmp_path), layout)
    assert said.endswith("tensor more09: (1) here, not there; and 3 more")


def test_what_the_model_has_beyond_is_named_and_frozen_tensors_are_not_beyond(tmp_path: Path) -> None:
    source = a_source(tmp_path, base=np.zeros((2, 2), np.float32), buffer=np.zeros(2, np.int64))
    layout = a_layout(FrozenTensor("base", (2, 2), 7))
    assert misfit(source, layout) == ""
    assert unused(source, layout) == ["buffer"]


def test_a_damaged_snapshot_is_refused_once_its_last_byte_has_been_read(tmp_path: Path) -> None:
    file = save_snapshot(tmp_path, 10, a_model()) / TENSORS_FILE
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    source = open_source(str(tmp_path))
    with pytest.raises(StartError, match="does not have the checksum of its manifest"):
        read_values(source, make_fragments(a_layout(), 1))
