"""The documents' commands for a cluster, typed as they stand: with the chart on a real control plane, and on simulated nodes there.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from builders.control_plane import ControlPlane
from builders.document_reader import LONG, a_checkout, environment_of, last, make_small, reading
from builders.kube_jobs import nodes_command
from builders.nodes import a_fleet_node
from builders.operator_pods import system_node

pytestmark = pytest.mark.timeout(1800)


# --- scenarios --------------------------------------------------------------------------------------------------------
def test_the_chart_is_installed_shared_upgraded_and_removed_as_the_documents_say(tmp_path: Path) -> None:
    make_small(a_checkout(tmp_path), "cpu.yaml", LONG)
    # Pods of the chart belong on the system node: kube-scheduler would choose among all while nothing trains.
    simulated = {"key": "simulated", "effect": "PreferNoSchedule"}
    fleet = [a_fleet_node(f"cpu-{index}", cpu=4, memory="16Gi", pods=110, taints=[simulated]) for index in range(3)]
    with contextlib.ExitStack() as stack:
        # Of its own: the documents install and remove the chart with its CRD and namespaces for the whole cluster.
        plane = stack.enter_context(ControlPlane(tmp_path / "plane", node_grace="50s"))
        stack.enter_context(system_node(plane, tmp_path / "system"))
        stack.enter_context(nodes_command(tmp_path / "nodes", plane.kubeconfig, fleet))
        reader = stack.enter_context(reading("chart", tmp_path, environment_of(plane, activated=True)))

        reader.type("helm/diloco-operator/README.md#diloco-operator")
        reader.shell.type("kubectl create namespace training; kubectl --namespace diloco-system apply -f examples/cpu.yaml")
        reader.shell.type("kubectl --namespace diloco-system wait --for=condition=Training dlj/cpu-lm --timeout=180s")
        reader.type("docs/stopping.md#remove-the-operator")
        left = reader.shell.type("kubectl get crd,clusterroles,clusterrolebindings,namespaces --output name")
        assert not [line for line in left.splitlines() if "diloco" in line or "training" in line]

        reader.type("docs/install.md#the-chart")
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
        reader.shell.type("kubectl --namespace training wait --for=condition=Training dlj/cpu-lm --timeout=180s")


JOB_TRAINS = "kubectl --namespace training wait --for=condition=Training dlj/cpu-lm --timeout=15m"
JOBS = "kubectl get dlj --all-namespaces"


def test_a_job_lives_on_simulated_nodes_from_its_start_to_its_deletion_as_the_documents_say(tmp_path: Path) -> None:
    checkout = a_checkout(tmp_path)
    make_small(checkout, "quickstart.yaml", LONG, QUADRATIC_STEP_MS="50", QUADRATIC_CRASH_AT_STEP="10", QUADRATIC_CRASH_UNIT="h100-0")
    with contextlib.ExitStack() as stack:
        # Of its own: the documents install the CRD, and their operator and nodes are for the whole cluster.
        plane = stack.enter_context(ControlPlane(tmp_path / "plane", node_grace="50s"))
        reader = stack.enter_context(reading("simulated nodes", tmp_path, environment_of(plane, activated=False)))
        guide = "CONTRIBUTING.md#a-cluster-of-simulated-nodes"
        reader.type(guide, {"kubectl get dlj --watch": "bytes-lm"})
        unit = """'{.status.units[?(@.name=="h100-0")].%s}'=%s"""
        for field, value in (("failedAttempt", 1), ("state", "Training")):
            reader.shell.type(f"kubectl wait --for=jsonpath={unit % (field, value)} dlj/bytes-lm --timeout=5m")
        shown = reader.type("docs/guide/troubleshooting.md#logs-also-after-the-end")
        assert "crash as requested at this step" in next(said for command, said in shown.items() if " -p " in command)
        reader.type(f"{guide}/2")
        drained = reader.shell.type("kubectl diloco drain bytes-lm v5p-0 --timeout 5m").splitlines()
        assert drained[0] == "pod/bytes-lm-v5p-0-a1-0 evicted"
        assert re.fullmatch(r"unit v5p-0 contributes again after .*; failures on its restart budget: 0", drained[-1])
        reader.shell.type("kubectl patch storageclass diloco-local --patch '{\"allowVolumeExpansion\": true}'")
        reader.type("docs/guide/troubleshooting.md#a-full-volume")
        shown = reader.type("docs/stopping.md#suspend-and-resume")
        assert "the state is saved" in shown["kubectl diloco suspend bytes-lm --wait"]
        assert "0 learners contribute, 0 placed" in shown["kubectl diloco status bytes-lm"]
        assert "dilocojob.diloco.dev/bytes-lm trains: " in last(shown)
        reader.type("docs/stopping.md#fewer-learners")
        reader.type("docs/stopping.md#finish-early")
        assert "model" in reader.type("docs/stopping.md#after-the-end")["kubectl diloco status bytes-lm"]
        reader.type("docs/guide/model.md#get-the-model/2")
        assert (checkout / "model.safetensors").exists()
        reader.type("docs/stopping.md#after-the-end/2")
        reader.type("docs/stopping.md#go-on-after-the-end")
        reader.type("docs/stopping.md#delete-a-job")
        assert (checkout / "kept.safetensors").exists()
        # As Velero restores the claim of a job that does not keep it.
        reader.shell.type("kubectl annotate pvc bytes-lm-syncer diloco.dev/job-uid-; kubectl label pvc bytes-lm-syncer diloco.dev/retain-")
        reader.type("docs/backup.md#go-on-from-a-claim")
        assert "went on from outer step" in reader.shell.type("kubectl get dlj bytes-lm --output yaml")
        reader.type(f"{guide}/3")
        reader.type("docs/operator.md#the-operator-process", {"diloco-operator run": "leading"})
