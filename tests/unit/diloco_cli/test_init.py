"""`diloco init`: a starter job for the hardware that there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from builders.documents import ROOT
from builders.jobs import Obj
from builders.nodes import a_fleet_gpu_node, a_fleet_node, a_fleet_tpu_node
from click.testing import CliRunner, Result
from diloco_cli.commands.validate import check
from diloco_cli.diloco.main import main
from diloco_cli.diloco.starter import starter_job
from diloco_cli.pool_option import read_pool
from diloco_operator.accelerators import ACCELERATOR_NAMES


def init(folder: Path, *nodes: Obj, options: tuple[str, ...] = ()) -> Result:
    (folder / "fleet.yaml").write_text(yaml.safe_dump_all(nodes))
    return CliRunner().invoke(main, ["init", "--fleet", str(folder / "fleet.yaml"), "-o", str(folder / "job.yaml"), *options])


def pools_in(file: Path) -> list[tuple[str, str, int]]:
    return [(each["name"], each["accelerator"], each["learners"]["max"]) for each in yaml.safe_load(file.read_text())["spec"]["pools"]]


def test_a_job_with_a_pool_for_each_kind_is_written_and_valid(tmp_path: Path) -> None:
    nodes = [a_fleet_tpu_node("t"), a_fleet_gpu_node("g0"), a_fleet_gpu_node("g1"), a_fleet_node("c", cpu=8)]
    done = init(tmp_path, *nodes)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{tmp_path}/job.yaml: a job for 2 of nvidia-h100-80gb, 1 of tpu-v5p 2x2x1. Fill in what is marked TODO;")
    assert pools_in(tmp_path / "job.yaml") == [("h100-80gb", "nvidia-h100-80gb", 2), ("v5p", "tpu-v5p", 1)]
    assert check((str(tmp_path / "job.yaml"),)).problems == []


@pytest.mark.parametrize("kind", ACCELERATOR_NAMES)
def test_the_job_is_valid_for_every_kind(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(starter_job("lm", "", [read_pool(f"{kind}=3", None)], ["nodes not asked for: 1 with a device"]))
    assert check((str(file),)).problems == []


def test_the_example_fleet_has_three_kinds(tmp_path: Path) -> None:
    arguments = ["init", "--fleet", str(ROOT / "examples" / "fleet.yaml"), "-o", str(tmp_path / "job.yaml"), "--image", "own:1"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert [name for name, _, _ in pools_in(tmp_path / "job.yaml")] == ["h100-80gb", "v6e", "v5p"]
    assert "image: own:1\n" in (tmp_path / "job.yaml").read_text()


def test_hardware_that_no_pool_can_name_is_a_comment(tmp_path: Path) -> None:
    assert init(tmp_path, a_fleet_gpu_node("g"), a_fleet_node("odd", gpu=8)).exit_code == 0
    assert "  # nodes not asked for: 1 with nvidia.com/gpu" in (tmp_path / "job.yaml").read_text()
    done = init(tmp_path, a_fleet_node("odd", gpu=8), options=("--force",))
    assert done.exit_code == 1
    assert "there are no nodes that a pool can name; nodes not asked for: 1 with nvidia.com/gpu" in done.stderr


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    done = init(tmp_path, a_fleet_node("c"))
    assert done.exit_code == 1
    assert "job.yaml is there already; give -o for another file, or --force to replace it" in done.stderr
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert init(tmp_path, a_fleet_node("c"), options=("--force",)).exit_code == 0
    assert pools_in(tmp_path / "job.yaml") == [("cpu", "cpu", 1)]
