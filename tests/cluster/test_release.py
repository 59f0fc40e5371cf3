"""What a release consists of, made of a copy of the tree and used by someone who has nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.checkouts import a_copy_of_the_tree
from builders.control_plane import PROGRAMS, ControlPlane
from builders.wheels import WITH_UV, Environment

VERSION = "9.9.9"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release with wheels and chart."""
    folder = tmp_path_factory.mktemp("release")
    tree = a_copy_of_the_tree(folder / "tree")
    command = [sys.executable, str(tree / "hack" / "release.py"), VERSION, "--output", str(folder / "out"), "--parts", "", "--require"]
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{WITH_UV}"}
    done = subprocess.run([*command, "wheels,chart"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def test_a_release_has_wheels_of_both_packages_the_chart_and_their_checksums(released: Path) -> None:
    names = {path.name for path in released.iterdir()} - {".gitignore"}
    wheels = {name for name in names if name.endswith(".whl")}
    assert len(wheels) == 3
    assert all(f"-{VERSION}-" in name for name in wheels)
    assert names - wheels == {f"diloco-operator-{VERSION}.tgz", "SHA256SUMS"}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=released, check=True, capture_output=True)
    shown = subprocess.run(
        [PROGRAMS / "helm", "template", "x", released / f"diloco-operator-{VERSION}.tgz"], capture_output=True, text=True, check=True
    )
    assert f"/operator:{VERSION}" in shown.stdout


def test_kubectl_finds_the_plugin_of_an_environment_that_has_the_wheels_alone(
    released: Path, control_plane: ControlPlane, tmp_path: Path
) -> None:
    control_plane.install_crd()
    empty = Environment(tmp_path / "venv").install(released, "diloco-operator[dashboard]")
    environment = {
        "PATH": f"{PROGRAMS}:{tmp_path}/venv/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "KUBECONFIG": str(control_plane.kubeconfig),
    }

    def kubectl(*arguments: str) -> str:
        done = subprocess.run(["kubectl", *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "kubectl-diloco" in kubectl("plugin", "list")
    assert f"kubectl diloco {VERSION}" in kubectl("diloco", "--version")
    assert json.loads(kubectl("diloco", "status", "--namespace", "kube-public", "--output", "json")) == {"jobs": []}
    assert "Usage: kubectl diloco dashboard" in kubectl("diloco", "dashboard", "--help")
    assert {"starlette", "uvicorn"} <= empty.packages
