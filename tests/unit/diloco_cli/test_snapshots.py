"""`diloco snapshots`, and `diloco export --snapshot`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from builders.snapshots import a_model, save_snapshot
from click.testing import CliRunner, Result
from diloco.snapshots.store import MANIFEST_FILE, TENSORS_FILE
from diloco_cli.diloco.main import main
from safetensors.numpy import load_file


def diloco(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def saved_ago(snapshot: Path, seconds: float) -> Path:
    """Make it as old as that."""
    then = time.time() - seconds
    os.utime(snapshot / MANIFEST_FILE, (then, then))
    return snapshot


def test_a_table_for_each_folder_has_the_newest_first(tmp_path: Path) -> None:
    for job in ("one", "two"):
        for t, age in ((10, 7200), (20, 3600)):
            saved_ago(save_snapshot(tmp_path / "volumes" / "default" / f"{job}-syncer" / "snapshots", t, a_model(), job=job), age)
    done = diloco("snapshots", tmp_path)
    assert done.exit_code == 0, done.output
    folder = f"{tmp_path}/volumes/default/one-syncer/snapshots"
    first, header, *rows = done.output.splitlines()[:4]
    assert first == f"in {folder}:"
    assert header.split() == ["SNAPSHOT", "JOB", "STEP", "TOKENS", "SIZE", "AGE", "STATE"]
    size = (tmp_path / "volumes/default/one-syncer/snapshots/snapshot-00000001-t10" / TENSORS_FILE).stat().st_size
    assert [row.split() for row in rows] == [
        ["snapshot-00000002-t20", "one", "20", "0", f"{size}", "bytes", "1h00m", "complete"],
        ["snapshot-00000001-t10", "one", "10", "0", f"{size}", "bytes", "2h00m", "complete"],
    ]
    only = diloco("snapshots", tmp_path, "--job", "two", "--check", "-o", "json")
    assert [(one["job"], one["state"]) for one in json.loads(only.output)["snapshots"]] == [("two", "whole")] * 2


def test_a_damaged_one_is_told_with_why_and_the_exit_status_is_1(tmp_path: Path) -> None:
    save_snapshot(tmp_path, 10, a_model())
    (save_snapshot(tmp_path, 20, a_model()) / TENSORS_FILE).unlink()
    done = diloco("snapshots", tmp_path)
    assert done.exit_code == 1
    assert "damaged: tensors.safetensors is missing" in done.output
    nothing = diloco("snapshots", tmp_path / "nowhere")
    assert (nothing.exit_code, f"{tmp_path}/nowhere does not exist" in nothing.output) == (1, True)


def test_export_takes_the_snapshot_that_the_list_names(tmp_path: Path) -> None:
    for t in (10, 20):
        save_snapshot(tmp_path / "snapshots", t, a_model(t))
    (named,) = [one["snapshot"] for one in json.loads(diloco("snapshots", tmp_path, "-o", "json").output)["snapshots"] if one["step"] == 10]
    file = tmp_path / "model.safetensors"
    done = diloco("export", tmp_path, "--snapshot", named, "-o", file)
    assert done.exit_code == 0, done.output
    assert load_file(file)["scale"] == 10
    assert diloco("export", tmp_path, "--snapshot", named, "--step", "10").exit_code == 2
    missing = diloco("export", tmp_path, "--snapshot", "snapshot-00000009-t90", "-o", file)
    assert missing.exit_code == 1
    assert "There are those of outer steps 20, 10." in missing.output
