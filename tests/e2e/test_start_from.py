"""A job that begins with the model of another one, through the commands and the manifest that people use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from builders.exploration import full
from builders.local_jobs import a_fleet, a_quadratic_job
from builders.snapshots import save_snapshot
from diloco.tape.places import heads_in
from safetensors.numpy import load_file

type Obj = dict[str, Any]

DILOCO = Path(sys.executable).parent / "diloco"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(DILOCO), *words], cwd=folder, capture_output=True, text=True, check=False)


def up(folder: Path, job: Obj) -> Obj:
    """Run the job to its end. Its last status."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all(a_fleet()))
    name = job["metadata"]["name"]
    done = run(folder, "up", "job.yaml", "--fleet", "fleet.yaml", "--state-dir", name, "-o", "json", "--no-report")
    last: Obj = json.loads(done.stdout.splitlines()[-1])
    final: Obj = last["jobs"][0]
    return final


def conditions(status: Obj) -> dict[str, Obj]:
    return {condition["type"]: condition for condition in status["conditions"]}


def from_uri(job: Obj, uri: str) -> Obj:
    return {**job, "spec": {**job["spec"], "startFrom": {"uri": uri}}}


def test_a_job_trains_its_model_is_exported_and_the_next_one_begins_with_it(tmp_path: Path) -> None:
    first = up(tmp_path, a_quadratic_job("first", steps=120))
    assert conditions(first)["Complete"]["status"] == "True"
    listed = run(tmp_path, "snapshots", "first", "--check", "-o", "json")
    assert listed.returncode == 0, listed.stderr
    newest, *older = json.loads(listed.stdout)["snapshots"]
    assert (newest["step"], newest["state"]) == (120, "whole")
    assert older
    exported = run(tmp_path, "export", "first", "--snapshot", newest["snapshot"], "-o", "base.safetensors")
    assert exported.returncode == 0, exported.stderr

    # Steps of no consequence: what it begins with is in the snapshot of step 0.
    second = from_uri(a_quadratic_job("second", steps=16, every_steps=1000), f"file://{tmp_path}/base.safetensors")
    status = up(tmp_path, second)
    assert conditions(status)["Complete"]["status"] == "True", status
    base = load_file(tmp_path / "base.safetensors")
    begun = run(tmp_path, "export", "second", "--step", "0", "-o", "begun.safetensors")
    assert begun.returncode == 0, begun.stderr
    found = load_file(tmp_path / "begun.safetensors")
    assert found.keys() == base.keys()
    for name, value in base.items():
        np.testing.assert_array_equal(found[name], value)
    (seed,) = [head for head in heads_in(tmp_path / "second") if head["type"] == "seed"]
    assert seed["model"] == f"file://{tmp_path}/base.safetensors"
    assert first["progress"]["loss"] > 0
    # It goes on where the first one ended: from zeros the loss would be half of the target's variance, 0.5.
    assert status["progress"]["loss"] < 0.1


@pytest.mark.parametrize(
    ("tensors", "reason", "said"),
    [
        full(None, "StartUnusable", "cannot begin with the model of spec.startFrom: diloco syncer: spec.startFrom.uri"),
        (["embedding"], "LayoutRefused", "tensor layer00: (8,8) here, not there; tensor layer01: (8,8) here, not there"),
    ],
    ids=["nothing there", "another model"],
)
def test_a_model_that_cannot_be_begun_with_fails_the_job_and_says_why(
    tmp_path: Path, tensors: list[str] | None, reason: str, said: str
) -> None:
    if tensors is not None:
        save_snapshot(tmp_path / "other", 7, {name: np.zeros((16, 8), np.float32) for name in tensors})
    job = from_uri(a_quadratic_job("quad", units={"v5p": 1}, limit=0), f"file://{tmp_path}/other")
    failed = conditions(up(tmp_path, job))["Failed"]
    assert (failed["status"], failed["reason"]) == ("True", reason)
    assert said in failed["message"]
