"""Models that a job may begin with: where they are found, and what is no model."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from builders.failing_disk import failing_info
from builders.snapshots import a_model, save_snapshot
from diloco.start.source import Source, StartError, open_source
from safetensors.numpy import save_file

type Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


def values_of(source: Source) -> dict[str, np.ndarray[Any, Any]]:
    """All its tensors, put together from their blocks."""
    found = {name: np.full(tensor.shape, np.nan, np.float32).reshape(-1) for name, tensor in source.tensors.items()}
    for name, first, block in source.blocks(found.keys()):
        found[name][first : first + block.size] = block
    return {name: value.reshape(source.tensors[name].shape) for name, value in found.items()}


def assert_holds(source: Source, arrays: Arrays) -> None:
    found = values_of(source)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def refusal(uri: Path | str) -> str:
    with pytest.raises(StartError) as refused:
        open_source(str(uri))
    return str(refused.value)


# --- where a model is -------------------------------------------------------------------------------------------------
def test_a_safetensors_file_is_a_model(tmp_path: Path) -> None:
    file = tmp_path / "base.safetensors"
    save_file(a_model(2), file)
    source = open_source(f"file://{file}")
    assert source.name == f"file://{file}"
    assert_holds(source, a_model(2))


@pytest.mark.parametrize("entry", ["model.safetensors", "model.safetensors.index.json"])
def test_an_error_of_a_disk_is_not_taken_for_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    failing_info(monkeypatch, entry)
    assert "Input/output error" in refusal(tmp_path)


def test_a_folder_of_transformers_is_a_model_in_one_file_or_in_several(tmp_path: Path) -> None:
    whole, several = tmp_path / "whole", tmp_path / "several"
    for folder in (whole, several):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    save_file(a_model(2), whole / "model.safetensors")
    assert_holds(open_source(str(whole)), a_model(2))

    model = a_model(3)
    files = {"layers.0.weight": "model-1.safetensors", "layers.0.bias": "model-1.safetensors", "scale": "model-2.safetensors"}
    for file in sorted(set(files.values())):
        save_file({name: array for name, array in model.items() if files[name] == file}, several / file)
    (several / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    assert_holds(open_source(str(several)), model)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert f"{name} is no regular file" in refusal(tmp_path)


def test_a_snapshot_is_a_model_and_of_a_folder_the_newest_is_taken(tmp_path: Path) -> None:
    older = save_snapshot(tmp_path / "snapshots", 10, a_model(1), job="old")
    newest = save_snapshot(tmp_path / "snapshots", 20, a_model(2), job="old")
    source = open_source(f"file://{tmp_path}")
    assert source.name == f"{newest} (outer step 20 of job old)"
    assert_holds(source, a_model(2))
    assert_holds(open_source(str(older)), a_model(1))


def test_a_model_in_a_bucket_is_read_there(tmp_path: Path) -> None:
    save_file(a_model(2), tmp_path / "base.safetensors")
    base = f"memory:///{uuid.uuid4().hex}"
    fs = fsspec.filesystem("memory")
    fs.put_file(str(tmp_path / "base.safetensors"), f"{base}/base.safetensors")
    try:
        assert_holds(open_source(f"{base}/base.safetensors"), a_model(2))
    finally:
        fs.rm(base, recursive=True)


# --- types ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_floats_of_every_size_become_float32(tmp_path: Path, dtype: type) -> None:
    array: np.ndarray[Any, Any] = np.array([[0.1, -2.5], [65504.0, 1e-6]], dtype)
    save_file({"x": array}, tmp_path / "m.safetensors")
    assert_holds(open_source(str(tmp_path / "m.safetensors")), {"x": array.astype(np.float32)})


def test_bfloat16_is_the_upper_half_of_a_float32(tmp_path: Path) -> None:
    array = np.array([1.0, -0.15625, 3.0e38], np.float32)
    halves = (array.view(np.uint32) >> 16).astype(np.uint16)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + halves.tobytes())
    expected = (halves.astype(np.uint32) << 16).view(np.float32)
    assert_holds(open_source(str(tmp_path / "m.safetensors")), {"x": expected})


def test_large_tensors_come_in_blocks(tmp_path: Path) -> None:
    array = np.arange((4 << 20) + 3, dtype=np.float32)  # 16 MiB and 12 bytes: four blocks of 4 MiB, and the rest
    save_file({"x": array}, tmp_path / "m.safetensors")
    source = open_source(str(tmp_path / "m.safetensors"))
    assert [block.first for block in source.blocks(["x"])] == [number << 20 for number in range(5)]
    assert_holds(source, {"x": array})


# --- what is no model -------------------------------------------------------------------------------------------------
def test_a_place_without_a_model_is_named(tmp_path: Path) -> None:
    nowhere = f"file://{tmp_path}/nowhere"
    assert refusal(nowhere) == f"spec.startFrom.uri {nowhere}: {nowhere} does not exist"
    assert refusal(tmp_path / "m.safetensors").endswith("m.safetensors: there is no such file")
    said = refusal(tmp_path)
    assert "there is no model.safetensors" in said
    assert "there are no snapshots" in said
    assert "Install the driver" in refusal("nosuch://bucket/model")


def a_file(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "ends too early"),
        (b"PK\x03\x04" + b"\xff" * 100, "its header would have"),
        ((3).to_bytes(8, "little") + b"{no", "is no safetensors file"),
        (a_file([]), "is no safetensors file"),
        (a_file({"x": {"dtype": "F32"}}), "is no safetensors file"),
        (a_file({"x": entry([2], 0, 8)}, b"1234"), "tensor x lies beyond its end: it is truncated"),
        (a_file({"x": entry([3], 0, 8)}, b"12345678"), "tensor x has not as many bytes as its shape and type need"),
        (a_file({"x": entry([-2, -1], 0, 8)}, b"12345678"), "tensor x has not as many bytes"),
        (a_file({"x": entry([2], 0, 8), "y": entry([1], 4, 8)}, b"12345678"), "tensors x and y overlap"),
    ],
)
def test_a_file_that_is_no_safetensors_file_says_why(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    found = refusal(tmp_path / "m.safetensors")
    assert said in found
    assert "m.safetensors" in found


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{", "has no weight_map"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "names no file"),
        ('{"weight_map": {"x": "../other.safetensors"}}', "names '../other.safetensors', which is no .safetensors file beside it"),
        ('{"weight_map": {"x": "model.bin"}}', "which is no .safetensors file"),
        ('{"weight_map": {"x": "gone.safetensors"}}', "gone.safetensors"),
    ],
)
def test_an_index_leads_to_files_beside_it_or_is_refused(tmp_path: Path, index: str, said: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert said in refusal(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for file in ("a", "b"):
        save_file({"x": np.zeros(2, np.float32)}, tmp_path / f"{file}.safetensors")
    weight_map = {"x": "a.safetensors", "y": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "tensor x is in" in refusal(tmp_path)
