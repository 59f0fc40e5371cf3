"""Which snapshots there are, and what is said of damaged ones."""

from __future__ import annotations

import io
import json
import os
import shutil
import uuid
from pathlib import Path

import fsspec
import pytest
from builders.snapshots import a_model, save_snapshot
from builders.stored_states import a_stored_state
from diloco.export.listing import SnapshotEntry, State, list_snapshots, list_states
from diloco.export.listing_stream import ListingReader, send_listing
from diloco.export.places import ExportError
from diloco.snapshots.remote import RemoteSnapshots
from diloco.snapshots.store import MANIFEST_FILE, MOST_MANIFEST, TENSORS_FILE, SnapshotError, SnapshotStore, manifest_bytes
from diloco.snapshots.stored_state import FOLDER, REST_FILE


def listed(where: Path | str, *, job: str = "", check: bool = False) -> list[SnapshotEntry]:
    return list(list_snapshots(str(where), job=job, check=check))


def names(found: list[SnapshotEntry]) -> list[str]:
    return [one.snapshot for one in found]


def test_each_snapshot_has_its_step_size_and_time_and_the_newest_is_first(tmp_path: Path) -> None:
    paths = [save_snapshot(tmp_path / "snapshots", t, a_model()) for t in (10, 30, 20)]  # a roll-back: step 20 was saved last
    found = listed(tmp_path)
    assert names(found) == [path.name for path in reversed(paths)]
    newest, path = found[0], paths[-1]
    assert (newest.folder, newest.job, newest.step, newest.tokens) == (str(tmp_path / "snapshots"), "bytes-lm", 20, 0)
    assert newest.bytes == (path / TENSORS_FILE).stat().st_size
    assert newest.saved == pytest.approx((path / MANIFEST_FILE).stat().st_mtime, abs=1e-3)
    assert [(one.state, one.why) for one in found] == [(State.COMPLETE, "")] * 3
    assert [one.state for one in listed(tmp_path, check=True)] == [State.WHOLE] * 3
    assert listed(path) == [newest]


def test_snapshots_of_several_jobs_are_listed_by_folder_or_of_one_job_only(tmp_path: Path) -> None:
    for job in ("one", "two"):
        save_snapshot(tmp_path / job / "snapshots", 10, a_model(), job=job)
    assert [(one.job, one.folder) for one in listed(tmp_path)] == [(job, f"{tmp_path}/{job}/snapshots") for job in ("one", "two")]
    assert [one.job for one in listed(tmp_path, job="two")] == ["two"]
    with pytest.raises(ExportError, match="there are no snapshots of job three"):
        listed(tmp_path, job="three")


def test_copies_in_an_object_store_are_listed(tmp_path: Path) -> None:
    base = f"memory:///{uuid.uuid4().hex}"
    RemoteSnapshots(f"{base}/default-quad-uid", keep=3).upload(save_snapshot(tmp_path, 30, a_model(), job="quad"))
    try:
        (found,) = listed(base, check=True)
    finally:
        fsspec.filesystem("memory").rm(base, recursive=True)
    assert (found.folder, found.job, found.step, found.state) == (f"{base}/default-quad-uid", "quad", 30, State.WHOLE)


def flip_the_last_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_what_is_wrong_with_a_snapshot_is_said_and_the_others_are_listed_as_they_are(tmp_path: Path) -> None:
    short, changed, without, unfinished, manifest, good = (save_snapshot(tmp_path, t, a_model()) for t in range(1, 7))
    (short / TENSORS_FILE).write_bytes(b"short")
    flip_the_last_byte(changed / TENSORS_FILE)
    (without / TENSORS_FILE).unlink()
    (unfinished / MANIFEST_FILE).unlink()
    (manifest / MANIFEST_FILE).write_text("{")
    found = {one.snapshot: one for one in listed(tmp_path)}
    states = {path: found[path.name].state for path in (short, changed, without, unfinished, manifest, good)}
    assert states == {
        short: State.DAMAGED,
        changed: State.COMPLETE,  # its bytes were not read
        without: State.DAMAGED,
        unfinished: State.UNFINISHED,
        manifest: State.DAMAGED,
        good: State.COMPLETE,
    }
    assert found[short.name].why.startswith("tensors.safetensors has 5 bytes, its manifest says ")
    assert found[without.name].why == "tensors.safetensors is missing"
    assert found[manifest.name].why.startswith("manifest.json is not JSON")
    checked = {one.snapshot: one for one in listed(tmp_path, check=True)}
    assert checked[changed.name].why == "tensors.safetensors does not have the checksum of its manifest: its bytes have changed"
    assert checked[good.name].state is State.WHOLE


def test_what_units_have_stored_is_listed_beside_the_copies_of_snapshots(tmp_path: Path) -> None:
    copies = tmp_path / "default-quad-uid"
    save_snapshot(copies, 30, a_model(), job="quad")
    stored = [a_stored_state(f"file://{copies}", unit, t=20, local_step=25) for unit in ("v5p-1", "v5p-0")]
    folders = [copies / FOLDER / state.unit / state.name for state in stored]
    (copies / FOLDER / "v5p-0/000001-0000000099").mkdir()  # of one that is being written
    found = list(list_states(str(tmp_path)))
    assert [(one.unit, one.job, one.step, one.local_step, one.kind) for one in found] == [
        ("v5p-0", "quad", 20, 25, "torch AdamW"),
        ("v5p-1", "quad", 20, 25, "torch AdamW"),
    ]
    assert (found[1].folder, found[1].bytes) == (str(folders[0]), 48)
    assert [one.state for one in found] == [State.COMPLETE] * 2
    assert [one.state for one in list_states(f"file://{tmp_path}", check=True)] == [State.WHOLE] * 2
    assert not list(list_states(str(tmp_path), job="another"))
    assert not list(list_states(str(next(copies.glob("snapshot-*"))))), "a snapshot alone has no states"
    flip_the_last_byte(folders[0] / REST_FILE)
    (folders[1] / REST_FILE).unlink()
    assert [(one.state, one.why) for one in list_states(str(tmp_path), check=True)] == [
        (State.DAMAGED, "rest.bin is missing"),
        (State.DAMAGED, "rest.bin does not have the checksum of its manifest: its bytes have changed"),
    ]


def test_a_state_whose_manifest_cannot_be_read_is_damaged_and_the_others_are_listed(tmp_path: Path) -> None:
    save_snapshot(tmp_path, 20, a_model())
    folders = [tmp_path / FOLDER / unit / a_stored_state(f"file://{tmp_path}", unit, t=20, local_step=25).name for unit in "abc"]
    manifest = json.loads((folders[0] / MANIFEST_FILE).read_text())
    del manifest["formatVersion"], manifest["manifestSha256"]
    manifest["meta"]["localStep"] = "twenty"
    (folders[0] / MANIFEST_FILE).write_bytes(manifest_bytes(manifest))
    folders[1].rename(folders[1].with_name("000001-0000000026"))
    found = list(list_states(str(tmp_path), check=True))
    assert [one.state for one in found] == [State.DAMAGED, State.DAMAGED, State.WHOLE]
    assert found[0].why.startswith("manifest.json is no manifest of a unit's state: ValueError")
    assert found[1].why == "manifest.json is that of 000001-0000000025"


@pytest.mark.parametrize("check", [False, True])
def test_what_never_ends_or_is_too_large_is_not_read(tmp_path: Path, *, check: bool) -> None:
    pipe, device, tensors, large = (save_snapshot(tmp_path, t, a_model()) for t in (10, 20, 30, 40))
    stored = tmp_path / FOLDER / "a" / a_stored_state(f"file://{tmp_path}", "a", t=20).name
    for path in (pipe / MANIFEST_FILE, stored / REST_FILE):
        path.unlink()
        os.mkfifo(path)
    for path in (device / MANIFEST_FILE, tensors / TENSORS_FILE):
        path.unlink()
        path.symlink_to("/dev/zero")
    with (large / MANIFEST_FILE).open("r+b") as file:
        file.truncate(MOST_MANIFEST + 1)  # without a block on the disk
    why = {one.snapshot: one.why for one in listed(tmp_path, check=check)}
    assert why[pipe.name] == why[device.name] == "manifest.json is no regular file"
    assert why[tensors.name] == "tensors.safetensors is no regular file"
    assert why[large.name] == "manifest.json has 268435457 bytes, and 268435456 at most are expected"
    assert [one.why for one in list_states(str(tmp_path), check=check)] == ["rest.bin is no regular file"]
    with pytest.raises(SnapshotError, match=r"tensors\.safetensors is no regular file.*manifest\.json is no regular file"):
        SnapshotStore(tmp_path, keep=4).load_newest()


def test_what_a_job_replaces_while_it_is_listed_is_left_out(tmp_path: Path) -> None:
    older, newer = (save_snapshot(tmp_path, t, a_model()) for t in (10, 20))
    first, second = (tmp_path / FOLDER / unit / a_stored_state(f"file://{tmp_path}", unit, t=20).name for unit in ("a", "b"))
    listing = list_snapshots(str(tmp_path))
    assert next(listing).snapshot == newer.name
    shutil.rmtree(older)
    assert not list(listing)
    stored = list_states(str(tmp_path))
    assert next(stored).folder == str(first)
    shutil.rmtree(second)
    assert not list(stored)
    # Gone while it is read: its blocks are not there any more.
    assert not list(list_states(str(tmp_path), check=True, reading=lambda: shutil.rmtree(first, ignore_errors=True)))


def test_if_all_snapshots_are_removed_while_they_are_listed_there_are_none(tmp_path: Path) -> None:
    damaged = save_snapshot(tmp_path, 10, a_model())
    flip_the_last_byte(damaged / TENSORS_FILE)
    with pytest.raises(ExportError, match="there are no snapshots in"):
        list(list_snapshots(str(tmp_path), check=True, reading=lambda: shutil.rmtree(damaged, ignore_errors=True)))


def test_a_place_without_snapshots_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="there are no snapshots in"):
        listed(tmp_path)
    with pytest.raises(ExportError, match="nowhere does not exist"):
        listed(tmp_path / "nowhere")


def sent(where: Path) -> bytes:
    output = io.BytesIO()
    send_listing(str(where), output, io.BytesIO(b"received\n"))
    return output.getvalue()


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_list_comes_over_a_pipe_in_whatever_pieces(tmp_path: Path, size: int) -> None:
    for t in (10, 20):
        save_snapshot(tmp_path, t, a_model())
    stream, reader = b"\n\n" + sent(tmp_path), ListingReader()
    for at in range(0, len(stream), size):
        assert not reader.complete
        reader.feed(stream[at : at + size])
    reader.end()
    assert reader.found == listed(tmp_path)


def test_a_list_that_is_cut_or_none_is_refused(tmp_path: Path) -> None:
    save_snapshot(tmp_path, 10, a_model())
    cut = ListingReader()
    cut.feed(sent(tmp_path).splitlines(keepends=True)[0])
    with pytest.raises(ExportError, match="ended after 1 snapshot, and was not complete"):
        cut.end()
    for text in (b"usage: nothing\n", json.dumps({"snapshot": 1}).encode() + b"\n", b"[]\n"):
        with pytest.raises(ExportError, match="this is no list"):
            ListingReader().feed(text)
