"""`kubectl diloco export` through a real kubelet and a real container, of a claim that was kept.

See docs/decisions/0139-model-in-and-out.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.control_plane import PROGRAMS
from builders.real_nodes import RealCluster, scratch
from builders.snapshots import save_large_snapshot
from safetensors import safe_open

JOBS = "training"
CLAIM = "kept-syncer"
TENSORS, ELEMENTS = 9, 32 << 20
"""1.1 GiB of parameters."""


@pytest.fixture(scope="module")
def snapshots(cluster: RealCluster) -> Iterator[Path]:
    """The snapshots on the claim: a small one of step 10, and a large one of step 20."""
    folder = scratch() / "kept"
    save_large_snapshot(folder / "snapshots", 10, 1, 1000)
    save_large_snapshot(folder / "snapshots", 20, TENSORS, ELEMENTS)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    cluster.provide_read_only_volume(CLAIM, JOBS, folder)
    yield folder / "snapshots"
    shutil.rmtree(folder)


def export_pods(cluster: RealCluster) -> list[str]:
    """Those that are not being deleted."""
    items = cluster.plane.request("GET", f"/api/v1/namespaces/{JOBS}/pods?labelSelector=diloco.dev/component=export")["items"]
    return [pod["metadata"]["name"] for pod in items if "deletionTimestamp" not in pod["metadata"]]


def test_a_gibibyte_comes_whole_out_of_a_container(cluster: RealCluster, snapshots: Path, tmp_path: Path) -> None:
    done = cluster.plane.kubectl("diloco", "export", "--claim", CLAIM, "-n", JOBS, "-o", str(tmp_path))
    assert f"{TENSORS * ELEMENTS:,} parameters in 9 tensors, float32" in done.stdout
    with (
        safe_open(tmp_path / "model.safetensors", framework="numpy") as model,
        safe_open(next(snapshots.glob("*-t20")) / "tensors.safetensors", framework="numpy") as source,
    ):
        assert len(model.keys()) == TENSORS
        for name in model.keys():  # noqa: SIM118 - it is no mapping
            assert (model.get_tensor(name) == source.get_tensor(f"value/{name}")).all()
    assert export_pods(cluster) == []


def test_a_program_that_is_killed_on_the_way_leaves_no_file_and_no_pod(cluster: RealCluster, snapshots: Path, tmp_path: Path) -> None:
    command = [str(PROGRAMS / "kubectl"), "diloco", "export", "--claim", CLAIM, "-n", JOBS, "-o", str(tmp_path)]
    export = subprocess.Popen(command, env=cluster.plane.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    cluster.wait_for(lambda: any(part.stat().st_size > 1 << 20 for part in tmp_path.glob("*.part")), "the file to grow")
    pod = export_pods(cluster)[0]
    for node in cluster.nodes.values():
        for process in node.processes(pod, "export"):
            os.kill(process, signal.SIGKILL)
    _, said = export.communicate()
    assert export.returncode == 1, said
    assert f"Error: the export in pod {pod} ended early: " in said or "Error: the stream ended after " in said
    assert list(tmp_path.iterdir()) == []
    assert export_pods(cluster) == []


def test_ctrl_c_leaves_no_file_and_no_pod(cluster: RealCluster, snapshots: Path, tmp_path: Path) -> None:
    command = [str(PROGRAMS / "kubectl"), "diloco", "export", "--claim", CLAIM, "-n", JOBS, "-o", str(tmp_path)]
    export = subprocess.Popen(command, env=cluster.plane.environment, stderr=subprocess.PIPE, text=True)
    cluster.wait_for(lambda: any(part.stat().st_size > 1 << 20 for part in tmp_path.glob("*.part")), "the file to grow")
    export.send_signal(signal.SIGINT)
    _, said = export.communicate()
    assert export.returncode == 130, said
    assert list(tmp_path.iterdir()) == []
    assert export_pods(cluster) == []


def test_a_step_that_is_not_there_is_said_by_the_program_in_the_pod(cluster: RealCluster, snapshots: Path, tmp_path: Path) -> None:
    done = cluster.plane.kubectl("diloco", "export", "--claim", CLAIM, "-n", JOBS, "--step", "30", "-o", str(tmp_path), check=False)
    assert done.returncode == 1
    assert "there is no snapshot of outer step 30 in " in done.stderr
    assert "There are those of outer steps 20, 10." in done.stderr
    done = cluster.plane.kubectl("diloco", "export", "--claim", CLAIM, "-n", JOBS, "--step", "10", "-o", str(tmp_path))
    assert "1,000 parameters in 1 tensor, float32" in done.stdout
