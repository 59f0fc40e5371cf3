"""Whatever a snapshot's files hold, one that cannot be used is passed over for the next older one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE, SnapshotStore, Unusable, parse_manifest
from diloco.snapshots.tensor_file import TensorParts


def a_store(root: Path) -> SnapshotStore:
    """With snapshots of the steps 240 and 480."""
    store = SnapshotStore(root, keep=10)
    for t in (240, 480):
        store.save(t, TensorParts([{"w": np.full((4, 3), t, np.float32)}]), {"epoch": 37682896, "t": t, "share": 0.25})
    return store


def write_manifest(folder: Path, text: str) -> None:
    (folder / MANIFEST_FILE).write_text(text)


def with_value(folder: Path, text: str) -> None:
    """The manifest with this text in the place of a number."""
    write_manifest(folder, (folder / MANIFEST_FILE).read_text().replace("37682896", text))


def with_header(folder: Path, header: bytes) -> None:
    """Tensors whose header is this, and a manifest that was made for them."""
    data = len(header).to_bytes(8, "little") + header
    (folder / TENSORS_FILE).write_bytes(data)
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    manifest |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del manifest["manifestSha256"]
    manifest["manifestSha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    write_manifest(folder, json.dumps(manifest))


DEEP = 200_000


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: with_value(folder, "3e768"), "does not have its own checksum"),
        (lambda folder: with_value(folder, "-2e2896"), "does not have its own checksum"),
        (lambda folder: with_value(folder, "NaN"), "does not have its own checksum"),
        (lambda folder: with_value(folder, "9" * 5000), "is not JSON"),
        (lambda folder: with_value(folder, "[" * DEEP + "]" * DEEP), "is not JSON"),
        (lambda folder: write_manifest(folder, "[" * DEEP), "is not JSON"),
        (lambda folder: with_header(folder, b"[" * DEEP), "cannot be read"),
        (lambda folder: with_header(folder, b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,0]}}'), "cannot be read"),
    ],
    ids=["beyond all floats", "below all floats", "NaN", "many digits", "deep value", "deep text", "deep header", "endless shape"],
)
def test_a_snapshot_that_cannot_be_read_makes_way_for_the_next_older_one(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    store = a_store(tmp_path)
    newest = store.paths()[0]
    damage(newest)
    loaded = store.load_newest()
    assert loaded is not None
    assert loaded.t == 240
    assert [skipped.path for skipped in loaded.skipped] == [newest]
    assert why in loaded.skipped[0].why


@pytest.mark.parametrize("byte", b'e9[{"- \x00\xff', ids=repr)
def test_no_change_of_one_byte_of_a_manifest_is_more_than_unusable(tmp_path: Path, byte: int) -> None:
    text = (a_store(tmp_path).paths()[0] / MANIFEST_FILE).read_bytes()
    whole = parse_manifest(text)
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] = byte
        try:
            assert parse_manifest(bytes(changed)) == whole  # white space, or what was there before
        except Unusable:
            continue
