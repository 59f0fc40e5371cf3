"""The documents' commands, typed as they stand: on this machine, with the chart on a real control plane, and on simulated nodes there.

See docs/decisions/0144-commands-of-documents.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from builders.control_plane import ROOT, ControlPlane, start
from builders.documents import SCENARIOS, not_typed, shell_blocks
from builders.kube_jobs import nodes_command
from builders.local_jobs import PROGRAM
from builders.nodes import a_fleet_node
from builders.operator_pods import system_node
from builders.terminal import CommandRefused, Terminal, terminal

pytestmark = pytest.mark.timeout(1800)


LONG = 1_000_000
"""Outer steps that no job reaches before it is told to end."""


class Reader:
    """Follows a scenario: types its blocks as they stand."""

    def __init__(self, scenario: str, shell: Terminal) -> None:
        self.shell = shell
        self._left = list(SCENARIOS[scenario])

    def type(self, name: str, until: Mapping[str, str] | None = None) -> dict[str, str]:
        """The block of this name; what the screen showed of each command. `until`: by the beginning of a command that does not end by
        itself, what its output must show before Ctrl-C."""
        self._left.remove(name)
        shown: dict[str, str] = {}
        for command in shell_blocks()[name].commands:
            if not_typed(command):
                continue
            awaited = next((text for beginning, text in (until or {}).items() if command.startswith(beginning)), None)
            shown[command] = self.shell.type(command) if awaited is None else self.shell.type_until(command, awaited)
        return shown

    def finish(self) -> None:
        assert self._left == [], "these blocks of the scenario were not typed"


@contextlib.contextmanager
def reading(scenario: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Reader]:
    """A reader in front of a checkout of its own."""
    with terminal(folder / "terminal", folder / "checkout", environment) as shell:
        reader = Reader(scenario, shell)
        try:
            yield reader
        except CommandRefused as error:
            if "KUBECONFIG" in environment:
                error.add_note(shell.type("kubectl get dlj,pods --all-namespaces -o wide; kubectl diloco status --all-namespaces; true"))
            raise
        reader.finish()


def a_checkout(folder: Path) -> Path:
    """What the commands need of this repository, with this one's programs."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("Makefile", "pyproject.toml", "uv.lock", "hatch_build.py", "README.md"):
        shutil.copy2(ROOT / name, checkout)
    # The kernels: what `make` compiles into a checkout must be there, or it would set this one up.
    for name in ("examples", "helm", "crds", "hack", "runtimes/diloco/kernels"):
        shutil.copytree(ROOT / name, checkout / name)
    # The environment counts as complete, or `make` would install this checkout into it.
    (checkout / ".venv").mkdir()
    for part in (ROOT / ".venv").iterdir():
        (checkout / ".venv" / part.name).symlink_to(part)
    (checkout / ".venv" / ".synced").unlink(missing_ok=True)
    (checkout / ".venv" / ".synced").touch()
    return checkout


def make_small(checkout: Path, example: str, steps: int | None = None, **environment: str) -> None:
    """The job of an example with learners that start at once: a tiny model in numpy. `steps`: as many outer steps."""
    file = checkout / "examples" / example
    job = yaml.safe_load(file.read_text())
    if steps:
        job["spec"]["training"]["steps"] = steps
    for pool in job["spec"]["pools"]:
        [container] = pool["template"]["spec"]["containers"]
        container["command"] = ["python", str(PROGRAM)]
        container["env"] = [{"name": name, "value": value} for name, value in {"QUADRATIC_STEP_MS": "20", **environment}.items()]
    file.write_text(yaml.safe_dump(job, sort_keys=False))


def environment_of(plane: ControlPlane, *, activated: bool) -> dict[str, str]:
    """Of a person who has kubectl, Helm and access to the cluster. `~/.kube/config` is the same access. `activated`: with this repository's
    programs on PATH."""
    environment = plane.environment
    config = Path(environment["HOME"], ".kube", "config")
    config.parent.mkdir(exist_ok=True)
    shutil.copy(plane.kubeconfig, config)
    own = [] if activated else [str(Path(sys.executable).parent)]
    path = ":".join(each for each in environment["PATH"].split(":") if each not in own)
    return {**environment, "PATH": path, "REGISTRY": "registry.example.com/diloco"}


# --- scenarios --------------------------------------------------------------------------------------------------------
def test_the_chart_is_installed_shared_upgraded_and_removed_as_the_documents_say(tmp_path: Path) -> None:
    make_small(a_checkout(tmp_path), "cpu.yaml", LONG)
    fleet = [a_fleet_node(f"cpu-{index}", cpu=4, memory="16Gi", pods=110) for index in range(3)]
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(start(tmp_path / "plane", node_grace="50s"))
        stack.enter_context(system_node(plane, tmp_path / "system"))
        stack.enter_context(nodes_command(tmp_path / "nodes", plane.kubeconfig, fleet))
        reader = stack.enter_context(reading("chart", tmp_path, environment_of(plane, activated=True)))

        shown = reader.type("README.md#install-on-a-cluster")
        assert "cpu-lm" in last(shown)
        trains = "kubectl --namespace training wait --for=condition=Training dlj/cpu-lm --timeout=180s"
        reader.shell.type(trains)
        reader.type("docs/stopping.md#remove-the-operator")
        left = reader.shell.type("kubectl get crd,clusterroles,clusterrolebindings,namespaces --output name")
        assert not [line for line in left.splitlines() if "diloco" in line or "training" in line]

        reader.type("helm/diloco-operator/README.md#diloco-operator")
        reader.type("docs/install.md#the-chart")  # over the release that is there
        assert "condition met" in reader.type("docs/install.md#a-job")[JOB_TRAINS]
        reader.type("docs/install.md#namespaces")
        reader.type("docs/install.md#namespaces/2")
        reader.type("docs/install.md#upgrade")

        reader.type("docs/sharing.md#two-teams")
        shown = reader.type("docs/sharing.md#two-teams/2")
        assert list(map(str.strip, list(shown.values())[1:])) == ["yes", "yes"]
        reader.type("docs/sharing.md#priority")
        reader.type("docs/sharing.md#priority/2")
        reader.shell.type("kubectl --namespace vision wait --for=condition=Training dlj/cpu-lm --timeout=180s")
        shown = reader.type("docs/sharing.md#quota")
        assert "exceeded quota: team, requested: requests.cpu=1" in shown["kubectl diloco units cpu-lm --namespace language"]
        shown = reader.type("docs/sharing.md#who-holds-what")
        assert {"training", "vision", "language"} <= {line.split()[0] for line in shown[JOBS].splitlines() if line.split()}

        reader.type("docs/install.md#uninstall")
        reader.shell.type(trains)


JOB_TRAINS = "kubectl --namespace training wait --for=condition=Training dlj/cpu-lm --timeout=15m"
JOBS = "kubectl get dlj --all-namespaces"


def last(shown: Mapping[str, str]) -> str:
    return list(shown.values())[-1]


def test_a_job_lives_on_simulated_nodes_from_its_start_to_its_deletion_as_the_documents_say(tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path)
    make_small(checkout, "quickstart.yaml", LONG, QUADRATIC_STEP_MS="50", QUADRATIC_CRASH_AT_STEP="10", QUADRATIC_CRASH_UNIT="h100-0")
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(start(tmp_path / "plane", node_grace="50s"))
        reader = stack.enter_context(reading("simulated nodes", tmp_path, environment_of(plane, activated=False)))
        guide = "docs/guide.md#try-it-on-a-cluster-of-simulated-nodes"
        reader.type(guide, {"kubectl get dlj --watch": "bytes-lm"})
        unit = """'{.status.units[?(@.name=="h100-0")].%s}'=%s"""
        for field, value in (("failedAttempt", 1), ("state", "Training")):
            reader.shell.type(f"kubectl wait --for=jsonpath={unit % (field, value)} dlj/bytes-lm --timeout=5m")
        shown = reader.type("docs/guide.md#logs-also-after-the-end")
        assert "crash as requested at this step" in next(said for command, said in shown.items() if " -p " in command)
        reader.type(f"{guide}/2")
        drained = reader.shell.type("kubectl diloco drain bytes-lm v5p-0 --timeout 5m").splitlines()
        assert drained[0] == "pod/bytes-lm-v5p-0-a1-0 evicted"
        assert re.fullmatch(r"unit v5p-0 contributes again after .*; failures on its restart budget: 0", drained[-1])
        reader.shell.type("kubectl patch storageclass diloco-local --patch '{\"allowVolumeExpansion\": true}'")
        reader.type("docs/guide.md#a-full-volume")
        shown = reader.type("docs/stopping.md#suspend-and-resume")
        assert "the state is saved" in shown["kubectl diloco suspend bytes-lm --wait"]
        assert "0 learners contribute, 0 placed" in shown["kubectl diloco status bytes-lm"]
        assert "dilocojob.diloco.dev/bytes-lm trains: " in last(shown)
        reader.type("docs/stopping.md#fewer-learners")
        reader.type("docs/stopping.md#finish-early")
        assert "model" in reader.type("docs/stopping.md#after-the-end")["kubectl diloco status bytes-lm"]
        reader.type("docs/guide.md#get-the-model/2")
        assert (checkout / "model.safetensors").exists()
        reader.type("docs/stopping.md#after-the-end/2")
        reader.type("docs/stopping.md#go-on-after-the-end")
        reader.type("docs/stopping.md#delete-a-job")
        assert (checkout / "kept.safetensors").exists()
        reader.shell.type("kubectl apply -f examples/quickstart.yaml")
        reader.type(f"{guide}/3")
        reader.type("docs/operator.md#the-operator-process", {"diloco-operator run": "leading"})


def test_a_run_on_a_laptop_stops_goes_on_and_is_cleaned_up_as_the_documents_say(tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path)
    make_small(checkout, "quickstart.yaml")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "HELM_"))}
    with reading("laptop", tmp_path, environment) as reader:
        shown = reader.type("docs/guide.md#run-it-on-a-laptop", {"diloco up": "v5p-0 Training"})
        assert "To continue" in last(shown)
        assert "Complete" in last(reader.type("docs/stopping.md#on-a-laptop"))
        shown = reader.type("docs/guide.md#get-the-model")
        assert all("outer step 700 of job bytes-lm" in said for said in shown.values())
        reader.type("docs/guide.md#a-llama-on-your-own-data")
        assert sorted(file.name for file in (checkout / "tales").iterdir()) == ["config.json", "model.safetensors"]
        reader.type("docs/stopping.md#on-a-laptop/2")
        assert not (checkout / ".diloco").exists()
