"""The wheels in environments that hold nothing else: what a user gets who has no checkout and no compiler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
import yaml
from builders.documents import ROOT
from builders.exchange import Place, Processes, job_file, training
from builders.wheels import WITH_UV, Environment

pytestmark = [pytest.mark.xdist_group("images"), pytest.mark.full]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
QUADRATIC = ROOT / "tests" / "programs" / "quadratic_learner.py"
MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}
"""Processor in a wheel's name -> e_machine of its library (https://gabi.xinuos.com/elf/a-emachine.html)."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` makes."""
    folder = tmp_path_factory.mktemp("wheels")
    made = subprocess.run(
        [ROOT / "hack" / "wheels.sh", folder], env={**os.environ, "PATH": WITH_UV}, check=True, stdout=subprocess.PIPE, text=True
    )
    assert all(str(wheel) in made.stdout for wheel in folder.glob("*.whl")), "it says what it has made"
    return folder


@pytest.fixture(scope="module")
def runtime(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("runtime") / "venv").install(wheels, "diloco")


@pytest.fixture(scope="module")
def operator(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("operator") / "venv").install(wheels, "diloco-operator")


def machines(wheels: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the processor in the name of each wheel of the runtime, and its library."""
    for path in sorted(wheels.glob("diloco-*.whl")):
        with zipfile.ZipFile(path) as wheel:
            assert len(wheel.namelist()) == len(set(wheel.namelist()))
            yield path.stem.partition("manylinux_2_17_")[2], wheel.read("diloco/kernels/libkernels.so")


def test_the_runtime_has_a_wheel_with_compiled_loops_for_each_processor(wheels: Path) -> None:
    found = {machine: int.from_bytes(library[18:20], "little") for machine, library in machines(wheels)}
    assert found == MACHINES


def test_wheels_say_what_they_need_and_hold_their_own_packages_alone(wheels: Path) -> None:
    [operator] = wheels.glob("diloco_operator-*.whl")
    assert operator.name == f"diloco_operator-{VERSION}-py3-none-any.whl"
    for path in wheels.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
            said = Parser().parsestr(wheel.read(metadata).decode())
            tops = {name.split("/")[0] for name in wheel.namelist()}
        packages = {"diloco_operator", "diloco_local", "diloco_cli", "diloco_client"} if path == operator else {"diloco"}
        assert tops == {*packages, metadata.split("/")[0]}
        assert said["License-File"] == "LICENSE"
        needs = said.get_all("Requires-Dist", [])
        assert (f"diloco=={VERSION}" in needs) == (path == operator)
        assert not [need for need in needs if re.match(r"(torch|jax|kubernetes)\b", need) and "extra" not in need and path != operator]


def test_the_runtime_alone_needs_neither_kubernetes_nor_a_framework(runtime: Environment, tmp_path: Path) -> None:
    assert {"diloco", "numpy", "grpcio"} <= runtime.packages
    assert not runtime.packages & {"diloco_operator", "kubernetes", "click", "torch", "jax", "hatchling", "ziglang"}
    assert "diloco launch" in runtime.run("diloco", "--help", cwd=tmp_path)
    assert runtime.run("diloco", "--version", cwd=tmp_path) == f"diloco {VERSION}\n"
    assert "come with the package diloco-operator" in runtime.run("diloco", "up", "job.yaml", cwd=tmp_path, status=2)
    assert "usage: diloco-launch" in runtime.run("diloco-launch", "--help", cwd=tmp_path)


def test_a_learner_and_a_syncer_of_the_runtime_alone_train_a_job(runtime: Environment, tmp_path: Path) -> None:
    place = Place(tmp_path, job_file(training(steps=20, fragments=2)))
    processes = Processes(place, python=runtime.python)
    try:
        syncer, learner = processes.syncer(), processes.learner("cpu-0")
        assert learner.wait(180) == 0, learner.text
        assert syncer.wait(180) == 0, syncer.text
    finally:
        processes.end()
    assert place.result is not None
    assert place.result.step == 20


def test_the_operators_package_brings_all_commands_and_the_kubectl_plugin(operator: Environment, tmp_path: Path) -> None:
    assert {"diloco", "diloco_operator", "kubernetes"} <= operator.packages
    assert not operator.packages & {"torch", "jax", "pytest"}
    for program in ("diloco", "diloco-operator", "kubectl-diloco"):
        assert "Commands:" in operator.run(program, "--help", cwd=tmp_path)
    assert operator.run("diloco-operator", "--version", cwd=tmp_path).startswith(f"diloco-operator {VERSION} ")
    assert operator.run("diloco", "--version", cwd=tmp_path) == f"diloco {VERSION}\n"
    assert "Usage: kubectl diloco status" in operator.run("kubectl-diloco", "status", "--help", cwd=tmp_path)
    assert yaml.safe_load(operator.run("diloco", "crd", cwd=tmp_path))["kind"] == "CustomResourceDefinition"


def test_a_job_runs_on_a_laptop_that_has_only_the_wheels(operator: Environment, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUADRATIC.read_text())
    container = {"name": "learner", "image": "none", "command": ["python", "train.py"]}
    job = {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": "small"},
        "spec": {
            "learners": {"min": 1, "max": 1},
            "pools": [
                {"name": "cpu", "accelerator": "cpu", "hosts": 1, "learners": {"max": 1}, "template": {"spec": {"containers": [container]}}}
            ],
            "training": {"steps": 20, "syncInterval": 4, "fragments": 2},
        },
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    operator.run("diloco", "up", "job.yaml", cwd=tmp_path)
    operator.run("diloco", "export", ".diloco", "-o", "model.safetensors", cwd=tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size > 8 * 8 * 4
