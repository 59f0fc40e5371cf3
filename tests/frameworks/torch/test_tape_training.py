"""`diloco tape generate` and `diloco tape train`: units of a synthetic tape train a real model in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.documents import ROOT
from click.testing import CliRunner, Result
from diloco_cli.diloco.main import main
from safetensors.numpy import load_file

SMALL = ("--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "2", "--corpus-bytes", "65536")


def diloco(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manifest of the first example, with a short training."""
    manifest: Any = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    manifest["spec"]["training"] = {"steps": 36, "syncInterval": 6, "fragments": 6, "overlapSteps": 1, "compression": "Int4"}
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


def a_tape(folder: Path, seed: int) -> Path:
    drawn = diloco(
        "tape", "generate", "--units", 3, "--time", "1m", "--slow-every", "20s", "--fail-every", "15s", "--away", "5s", "--seed", seed
    )
    assert drawn.exit_code == 0, drawn.output
    path = folder / f"{seed}.tape"
    path.write_text(drawn.output)
    return path


def test_same_tape_gives_equal_bytes_of_the_global_parameters(job: Path, tmp_path: Path) -> None:
    tape = a_tape(tmp_path, seed=3)
    lines = []
    for number in range(2):
        done = diloco("tape", "train", job, tape, "-o", "json", "--save", tmp_path / f"{number}.safetensors", *SMALL)
        assert done.exit_code == 0, done.output
        lines.append(json.loads(done.output))
    assert lines[0] == lines[1]
    assert (tmp_path / "0.safetensors").read_bytes() == (tmp_path / "1.safetensors").read_bytes()
    assert lines[0]["outerSteps"] == 36
    assert lines[0]["failures"] > 0
    assert lines[0]["heldOutLoss"] < 5.5, "an untrained model has ln 256 = 5.545 nats per byte"
    assert {value.dtype.name for value in load_file(tmp_path / "0.safetensors").values()} == {"float32"}


@pytest.mark.full
def test_other_tape_trains_otherwise(job: Path, tmp_path: Path) -> None:
    found = [diloco("tape", "train", job, a_tape(tmp_path, seed), *SMALL) for seed in (3, 4)]
    assert all(done.exit_code == 0 for done in found)
    parameters = [next(line for line in done.output.splitlines() if line.startswith("parameters")) for done in found]
    assert parameters[0] != parameters[1]


def test_what_is_no_synthetic_tape_is_said(job: Path, tmp_path: Path) -> None:
    path = tmp_path / "tape"
    path.write_text('{"type": "segment", "format": 1}\n')
    done = diloco("tape", "train", job, path)
    assert done.exit_code != 0
    assert f"{path} is no synthetic tape: line 1: a synthetic tape begins with" in done.output
