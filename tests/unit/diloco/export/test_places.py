from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
from builders.failing_disk import failing_info
from builders.snapshots import a_model, save_snapshot
from diloco.export.places import ExportError, find_snapshot
from diloco.snapshots.remote import RemoteSnapshots
from diloco.snapshots.store import MANIFEST_FILE, TEMPORARY_PREFIX, SnapshotStore
from diloco.snapshots.tensor_file import TensorParts


def a_state_dir(root: Path, *jobs: str) -> Path:
    """As `diloco up` leaves it: volumes, logs and a lock."""
    (root / "logs" / "default" / "pod").mkdir(parents=True)
    (root / "lock").write_text("1")
    for job in jobs:
        save_snapshot(root / "volumes" / "default" / f"{job}-syncer" / "snapshots", 10, a_model(), job=job)
    return root


# --- places -----------------------------------------------------------------------------------------------------------
def test_the_newest_snapshot_is_found_in_every_kind_of_folder(tmp_path: Path) -> None:
    state_dir = a_state_dir(tmp_path / "state", "bytes-lm")
    volume = state_dir / "volumes" / "default" / "bytes-lm-syncer"
    newest = save_snapshot(volume / "snapshots", 20, a_model())
    for place in (state_dir, volume, volume / "snapshots", newest, f"file://{volume}", f"{state_dir}/"):
        found = find_snapshot(str(place))
        assert (found.path, found.t, found.job, found.remark) == (str(newest), 20, "bytes-lm", "")


def test_the_order_of_saves_counts_and_not_the_step(tmp_path: Path) -> None:
    for t in (10, 20, 15):  # a roll-back: step 15 was saved last
        save_snapshot(tmp_path, t, a_model())
    assert find_snapshot(str(tmp_path)).t == 15


def test_a_snapshot_is_chosen_by_its_step_and_of_two_the_one_saved_last(tmp_path: Path) -> None:
    for t in (10, 20, 10):
        save_snapshot(tmp_path, t, a_model())
    assert find_snapshot(str(tmp_path), step=20).t == 20
    assert find_snapshot(str(tmp_path), step=10).path.endswith("snapshot-00000003-t10")


def test_copies_below_the_uri_of_a_checkpoint_are_found_by_job(tmp_path: Path) -> None:
    base = f"memory:///{uuid.uuid4().hex}"
    for job in ("one", "two"):
        local = save_snapshot(tmp_path / job, 30, a_model(), job=job)
        RemoteSnapshots(f"{base}/default-{job}-uid", keep=3).upload(local)
    try:
        assert find_snapshot(base, job="two").name == f"{base}/default-two-uid/snapshot-00000001-t30"
        assert find_snapshot(f"{base}/default-one-uid").job == "one"
    finally:
        fsspec.filesystem("memory").rm(base, recursive=True)


# --- refusals ---------------------------------------------------------------------------------------------------------
def refusal(where: Path | str, *, job: str = "", step: int | None = None) -> str:
    with pytest.raises(ExportError) as refused:
        find_snapshot(str(where), job=job, step=step)
    return str(refused.value)


def test_several_jobs_are_named_and_one_must_be_chosen(tmp_path: Path) -> None:
    state_dir = a_state_dir(tmp_path, "one", "two")
    said = refusal(state_dir)
    assert "snapshots of several jobs: one (" in said
    assert f"two ({state_dir}/volumes/default/two-syncer/snapshots)" in said
    assert "--job" in said
    assert find_snapshot(str(state_dir), job="two").job == "two"
    assert refusal(state_dir, job="three") == f"there are no snapshots of job three in {state_dir}; there are some of one, two"


def test_two_jobs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for uid in ("a", "b"):
        save_snapshot(tmp_path / uid, 10, a_model(), job="same", uid=uid)
    assert refusal(tmp_path, job="same").endswith(f"same ({tmp_path}/a), same ({tmp_path}/b); give the folder of one of them")


def test_an_unknown_step_lists_those_that_exist(tmp_path: Path) -> None:
    for t in (10, 20):
        save_snapshot(tmp_path, t, a_model())
    assert refusal(tmp_path, step=30) == (f"there is no snapshot of outer step 30 in {tmp_path}. There are those of outer steps 20, 10.")


def test_a_place_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere") == f"{tmp_path}/nowhere does not exist"
    assert refusal(tmp_path).startswith(f"there are no snapshots in {tmp_path}: ")
    assert "Install the driver" in refusal("nosuch://bucket/jobs")


@pytest.mark.parametrize("entry", ["snapshots", "snapshot-00000001-t10", MANIFEST_FILE])
def test_an_error_of_a_disk_is_not_taken_for_something_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    snapshot = save_snapshot(tmp_path / "snapshots", 10, a_model())
    failing_info(monkeypatch, entry)
    assert "cannot be read: [Errno 5] Input/output error" in refusal(tmp_path / "snapshots" if entry == "snapshots" else snapshot)


def test_unfinished_snapshots_are_not_used_and_the_newer_ones_are_mentioned(tmp_path: Path) -> None:
    finished = save_snapshot(tmp_path, 10, a_model())
    (save_snapshot(tmp_path, 20, a_model()) / MANIFEST_FILE).unlink()  # as an upload in progress appears
    shutil.copytree(finished, tmp_path / f"{TEMPORARY_PREFIX}snapshot-00000003-t30")
    found = find_snapshot(str(tmp_path))
    assert found.t == 10
    assert found.remark.startswith("snapshot-00000002-t20 has no manifest.json")
    assert "There is one of outer step 10" in refusal(tmp_path, step=20)
    assert "no finished snapshot" in refusal(tmp_path / "snapshot-00000002-t20")


def test_a_damaged_manifest_names_the_snapshot_and_the_others(tmp_path: Path) -> None:
    save_snapshot(tmp_path, 10, a_model())
    damaged = save_snapshot(tmp_path, 20, a_model())
    manifest = damaged / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace('"t": 20', '"t": 21'))
    said = refusal(tmp_path)
    assert said.startswith(f"snapshot {damaged} cannot be used: {MANIFEST_FILE} does not have its own checksum")
    assert said.endswith("There is one of outer step 10.")


def test_a_snapshot_of_another_program_is_refused(tmp_path: Path) -> None:
    SnapshotStore(tmp_path, 1).save(3, TensorParts([{"x": np.zeros(2, np.float32)}]), {"epoch": 1})
    assert find_snapshot(str(tmp_path)).job == "?"
