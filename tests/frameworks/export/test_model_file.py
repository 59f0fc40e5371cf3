from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from builders.snapshots import a_model, save_snapshot
from diloco.export.model_file import DType, open_model
from diloco.export.places import ExportError
from diloco.export.target_file import TargetFile
from diloco.snapshots.store import TENSORS_FILE, SnapshotStore
from diloco.snapshots.tensor_file import TensorParts


def exported(where: Path, target: Path, *, dtype: DType = "float32", step: int | None = None) -> Path:
    with open_model(str(where), dtype=dtype, step=step) as model, TargetFile(target) as file:
        for piece in model.pieces():
            file.write(piece)
        assert file.bytes == model.size
        file.commit()
    return target


def refusal(where: Path, target: Path, **options: Any) -> str:
    with pytest.raises(ExportError) as refused:
        exported(where, target, **options)
    return str(refused.value)


# --- what is written --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fragments", [1, 3])
def test_the_file_holds_the_parameters_alone_as_the_library_reads_them(tmp_path: Path, fragments: int) -> None:
    model = a_model(0.5)
    save_snapshot(tmp_path / "snapshots", 7, model, fragments=fragments)
    file = exported(tmp_path / "snapshots", tmp_path / "model.safetensors")
    found = safetensors.numpy.load_file(file)
    assert found.keys() == model.keys()
    for name, array in model.items():
        assert found[name].dtype == np.float32
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert opened.metadata() == {"format": "pt", "step": "7", "job": "bytes-lm"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.safetensors", "snapshots"]


def test_equal_snapshots_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_snapshot(tmp_path / name, 7, a_model())
    assert exported(tmp_path / "a", tmp_path / "1").read_bytes() == exported(tmp_path / "b", tmp_path / "2").read_bytes()


def test_bfloat16_is_rounded_as_torch_rounds_it(tmp_path: Path) -> None:
    import safetensors.torch
    import torch

    bits = np.random.default_rng(7).integers(0, 0x7F7F0000, 20000, dtype=np.uint32)
    ties = (np.arange(64, dtype=np.uint32) << 16) + 0x3F808000  # halfway between two neighbours
    array = np.concatenate([bits, bits | 0x80000000, ties]).view(np.float32)
    save_snapshot(tmp_path / "snapshots", 1, {"x": array})
    found = safetensors.torch.load_file(exported(tmp_path / "snapshots", tmp_path / "model", dtype="bfloat16"))["x"]
    assert torch.equal(found, torch.from_numpy(array).to(torch.bfloat16))


def test_what_bfloat16_cannot_hold_is_refused(tmp_path: Path) -> None:
    # Its largest number is 2^127 * (2 - 2^-7), about 3.3895e38. What rounds to it lies below 2^127 * (2 - 2^-8), about 3.3962e38.
    save_snapshot(tmp_path / "good", 1, {"x": np.array([3.396e38, -3.396e38], np.float32)})
    exported(tmp_path / "good", tmp_path / "model", dtype="bfloat16")
    save_snapshot(tmp_path / "large", 1, {"x": np.array([3.4e38], np.float32)})
    assert "tensor x has values beyond the range of bfloat16; use --dtype float32" in refusal(
        tmp_path / "large", tmp_path / "other", dtype="bfloat16"
    )
    assert not (tmp_path / "other").exists()


def test_float16_is_rounded_and_what_it_cannot_hold_is_refused(tmp_path: Path) -> None:
    save_snapshot(tmp_path / "good", 1, {"x": np.array([1 / 3, -65504.0], np.float32)})
    found = safetensors.numpy.load_file(exported(tmp_path / "good", tmp_path / "model", dtype="float16"))["x"]
    np.testing.assert_array_equal(found, np.array([1 / 3, -65504.0], np.float16))
    save_snapshot(tmp_path / "large", 1, {"x": np.array([70000.0], np.float32)})
    assert "tensor x has values beyond the range of float16" in refusal(tmp_path / "large", tmp_path / "other", dtype="float16")
    assert not (tmp_path / "other").exists()


# --- damage -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:-3], "truncated"),
        (lambda data: data + b"x", "truncated or overwritten"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "does not have the checksum of its manifest"),
        (lambda data: b"\xff" * 8 + data[8:], "is no safetensors file"),
        (lambda data: data[:8] + b"x" + data[9:], "was not written by this program"),
        (lambda data: data.replace(b'"value/scale"', b'"value/sCale"'), "are not those of its manifest"),
    ],
)
def test_a_damaged_snapshot_leaves_no_file_and_names_the_others(tmp_path: Path, damage: Any, said: str) -> None:
    save_snapshot(tmp_path / "snapshots", 10, a_model())
    newest = save_snapshot(tmp_path / "snapshots", 20, a_model(2))
    tensors = newest / TENSORS_FILE
    tensors.write_bytes(damage(tensors.read_bytes()))
    (tmp_path / "out").mkdir()
    older = tmp_path / "out" / "model.safetensors"
    older.write_bytes(b"what was there before")
    message = refusal(tmp_path / "snapshots", older)
    assert message.startswith(f"snapshot {newest} cannot be used: ")
    assert said in message
    assert message.endswith("There is one of outer step 10.")
    assert [entry.name for entry in older.parent.iterdir()] == ["model.safetensors"]
    assert older.read_bytes() == b"what was there before"
    exported(tmp_path / "snapshots", older, step=10)
    assert safetensors.numpy.load_file(older)["scale"] == 1


def test_a_snapshot_without_its_tensors_is_named(tmp_path: Path) -> None:
    (save_snapshot(tmp_path, 20, a_model()) / TENSORS_FILE).unlink()
    assert f"has no {TENSORS_FILE}, or was removed meanwhile" in refusal(tmp_path, tmp_path / "model")


def test_a_snapshot_of_another_program_is_refused(tmp_path: Path) -> None:
    SnapshotStore(tmp_path / "s", 1).save(3, TensorParts([{"x": np.zeros(2, np.float32)}]), {"epoch": 1})
    assert "was not written by this program" in refusal(tmp_path / "s", tmp_path / "model")


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    save_snapshot(tmp_path / "snapshots", 1, a_model())
    assert refusal(tmp_path / "snapshots", tmp_path / "no" / "model").endswith("/no/model cannot be written: No such file or directory")


# --- size -------------------------------------------------------------------------------------------------------------
_EXPORT = """
import json, sys, tracemalloc
from pathlib import Path
from diloco.export.__main__ import main
tracemalloc.start()
status = main([sys.argv[1], "-o", sys.argv[2], "--dtype", sys.argv[3]])
print(json.dumps({"status": status, "peak": tracemalloc.get_traced_memory()[1]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_does_not_grow_with_the_model(tmp_path: Path, dtype: str) -> None:
    """64 MiB of parameters, of which one tensor has 60: a snapshot of 128 MiB with its momentum."""
    model = a_model(large=np.full((15 << 20,), 0.25, np.float32), other=np.full((1 << 20,), 0.5, np.float32))
    save_snapshot(tmp_path / "snapshots", 1, model)
    command = [sys.executable, "-c", _EXPORT, str(tmp_path / "snapshots"), str(tmp_path / "model"), dtype]
    told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert told["status"] == 0
    size = (tmp_path / "model").stat().st_size
    assert size > (64 << 20) // (2 if dtype == "bfloat16" else 1)
    # Blocks of 4 MiB: the one that is read, its copy in fsspec, and the temporaries of the rounding.
    assert told["peak"] < 32 << 20, f"{told['peak'] >> 20} MiB"
