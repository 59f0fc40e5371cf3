"""One job on real nodes, a JAX unit and a torch unit, and everything that happens to nodes and containers.

See docs/decisions/0082-real-programs-in-tests.md.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.jobs import JobBuilder
from builders.local import condition, is_true, unit_of
from builders.real_nodes import RealCluster
from diloco.data.ledger import Ledger
from diloco.snapshots.store import SnapshotStore
from nodes.images import Images
from nodes.oci import Image
from safetensors.numpy import load_file

type Obj = dict[str, Any]

JOBS = "training"
NAME = "bytes-lm"
CONTEXT = 32
"""Bytes of a sample, each of them a token."""

# A SIGUSR1 makes the learner itself ask for more memory than its container may have, page by page.
HUNGRY = """\
import runpy, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: b"\\1" * (1 << 34))
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
MODEL = [
    "--layers",
    "1",
    "--width",
    "32",
    "--heads",
    "2",
    "--context",
    str(CONTEXT),
    "--corpus-bytes",
    "500000",
    "--held-out-bytes",
    "4096",
]


def learner(image: Image, module: str, memory: str, **more: Any) -> Obj:
    return {
        "name": "learner",
        "image": image.name,
        "command": ["python", "-c", HUNGRY, module, *MODEL],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": memory}},
        **more,
    }


def job(made: Images, steps: int) -> Obj:
    """A unit in JAX on the TPU's node, and one in torch on the GPUs', whose packages come on a volume."""
    mount = {"name": "packages", "mountPath": "/opt/torch", "readOnly": True}
    volume = {"name": "packages", "persistentVolumeClaim": {"claimName": "torch-packages", "readOnly": True}}
    torch = learner(
        made.torch, "diloco.trainers.byte_lm_torch", "3Gi", env=[{"name": "PYTHONPATH", "value": "/opt/torch"}], volumeMounts=[mount]
    )
    nonroot = {"runAsNonRoot": True}  # the namespace forbids root, which a real TPU needs
    jax_template = {"spec": {"securityContext": nonroot, "containers": [learner(made.jax, "diloco.trainers.byte_lm_jax", "3Gi")]}}
    torch_template = {"spec": {"containers": [torch], "volumes": [volume]}}
    checkpoint = {"everySteps": 200, "keep": 2}
    return (
        JobBuilder(NAME)
        .in_namespace(JOBS)
        .with_learners(1, 2)
        .with_restarts(5, max="1m")
        .with_pool("v5p", max=1, template=jax_template)
        .with_gpu_pool("h100", max=1, template=torch_template)
        .with_training(steps=steps, syncInterval=8, fragments=8, overlapSteps=2, checkpoint=checkpoint)
        .with_spec(syncer={"storage": {"size": "1Gi"}})
        .build()
    )


# What a process of a pod may do: its user, capabilities, whether it can gain any, seccomp's filter, files it may write, a token of the API.
CONFINED = """\
import os, pathlib
status = dict(line.split(":\\t", 1) for line in pathlib.Path("/proc/1/status").read_text().splitlines() if ":\\t" in line)
writable = [path for path in ("/", "/opt", "/tmp", "/opt/torch") if os.access(path, os.W_OK)]
print(os.getuid(), status["CapBnd"], status["NoNewPrivs"], status["Seccomp"], writable, os.path.exists("/var/run/secrets/kubernetes.io"))
"""


class Training:
    """The job, as the cluster tells of it."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster

    def now(self) -> Obj:
        found = self.cluster.find(f"/apis/diloco.dev/v1alpha1/namespaces/{JOBS}/dilocojobs/{NAME}")
        assert found is not None
        return found

    def wait(self, holds: Callable[[Obj], bool], what: str) -> Obj:
        """The job as it was when it held: a moment later it may be different again."""
        found: list[Obj] = []

        def so() -> bool:
            found[:] = [self.now()]
            return holds(found[0])

        self.cluster.wait_for(so, what)
        return found[0]

    def unit(self, name: str, attempt: int) -> Obj:
        """The unit as soon as this attempt contributes."""

        def contributes(obj: Obj) -> bool:
            unit = unit_of(obj, name)
            return bool(unit) and unit["attempt"] == attempt and unit["state"] == "Training"

        return unit_of(self.wait(contributes, f"attempt {attempt} of {name} to train"), name)

    def syncer(self) -> str:
        """Identity of the pod whose syncer runs, "" when none does."""
        pod = self.cluster.find(f"/api/v1/namespaces/{JOBS}/pods/{NAME}-syncer")
        return str(pod["metadata"]["uid"]) if pod is not None and pod["status"]["phase"] == "Running" else ""

    def events(self) -> str:
        """What happened to the job, as kubectl tells it: one message a line."""
        told = self.cluster.plane.kubectl("events", "-n", JOBS, "--for", f"dilocojob/{NAME}", "-o", "jsonpath={.items[*].message}")
        return told.stdout

    def pod_name(self, unit: str, attempt: int) -> str:
        return f"{NAME}-{unit}-a{attempt}-0"

    def says(self, unit: str, program: str) -> str:
        """What a Python program in the container of the unit's first attempt prints."""
        return self.cluster.plane.kubectl("exec", "-n", JOBS, self.pod_name(unit, 1), "-c", "learner", "--", "python", "-c", program).stdout

    def doctor(self, check: str) -> list[tuple[str, str]]:
        """Level and message of what `kubectl diloco doctor` finds by one of its checks."""
        done = self.cluster.plane.kubectl("diloco", "doctor", NAME, "-n", JOBS, "-o", "json", check=False)
        return [(each["level"], each["message"]) for each in json.loads(done.stdout)["findings"] if each["check"] == check]

    def first_process(self, node: str, pod: str) -> int:
        return self.cluster.nodes[node].processes(pod, "learner")[0]


@pytest.mark.timeout(1800)
def test_a_job_trains_to_complete_through_all_that_happens_to_nodes_and_containers(
    cluster: RealCluster, project_images: Images, tmp_path: Path
) -> None:
    kubectl = cluster.plane.kubectl
    training = Training(cluster)
    cluster.apply(job(project_images, steps=1_000_000))  # more than there is time for; the end is set when everything has happened
    for unit in ("v5p-0", "h100-0"):
        training.unit(unit, 1)

    # Containers of the restricted profile, as the kernel sees them.
    for unit in ("v5p-0", "h100-0"):
        assert training.says(unit, CONFINED).split("\n")[0] == "65532 0000000000000000 1 2 ['/tmp'] False"
    policies = kubectl("get", "networkpolicies", "-n", JOBS, "-o", "jsonpath={.items[*].metadata.name}").stdout.split()
    assert sorted(policies) == ["diloco-diloco-operator-learner", "diloco-diloco-operator-syncer"]

    # From inside such a container the syncer is reached, by the name that the cluster's DNS knows.
    assert training.doctor("syncer") == [("ok", f"pod {training.pod_name('h100-0', 1)} reaches it at {NAME}-syncer.{NAME}.{JOBS}.svc:7077")]

    # kill -9 of the process in a learner's container.
    os.kill(training.first_process("tpu-0", training.pod_name("v5p-0", 1)), signal.SIGKILL)
    assert len(training.unit("v5p-0", 2)["failures"]) == 1

    # The learner takes more memory than its limit: the kernel kills it.
    os.kill(training.first_process("gpu-0", training.pod_name("h100-0", 1)), signal.SIGUSR1)
    assert len(training.unit("h100-0", 2)["failures"]) == 1
    assert "h100-0: attempt 1 ended: exit 137 (OOMKilled)" in training.events(), training.events()

    # The kubelet is killed: the container trains on, the node turns NotReady, and the unit is taken from it.
    process = training.first_process("tpu-0", training.pod_name("v5p-0", 2))
    cluster.nodes["tpu-0"].kill_kubelet()
    cluster.wait_for(lambda: not cluster.ready("tpu-0"), "tpu-0 to be NotReady")
    training.wait(lambda obj: unit_of(obj, "v5p-0")["state"] != "Training", "v5p-0 to leave the silent node")
    assert Path(f"/proc/{process}").exists(), "no kubelet ends it: the syncer must refuse it once its successor has joined"
    cluster.nodes["tpu-0"].start_kubelet()
    cluster.give_devices("tpu-0")
    assert len(training.unit("v5p-0", 3)["failures"]) == 1, "a lost node is not the unit's fault"

    # The node is deleted, and comes back as a new one.
    cluster.nodes["gpu-0"].kill_kubelet()
    kubectl("delete", "node", "gpu-0")
    training.wait(lambda obj: unit_of(obj, "h100-0")["state"] != "Training", "h100-0 to be missed")
    cluster.nodes["gpu-0"].start_kubelet()
    cluster.give_devices("gpu-0")
    assert len(training.unit("h100-0", 3)["failures"]) == 1, "a lost node is not the unit's fault"

    # Drain: the learner is evicted, hands back what it has and leaves.
    kubectl("drain", "tpu-0", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    kubectl("uncordon", "tpu-0")
    assert len(training.unit("v5p-0", 4)["failures"]) == 1, "a drain is not the unit's fault"

    # The node of the operator and of the syncer is drained: both move, the syncer goes on from its volume, and the learners stay.
    before = training.syncer()
    kubectl("drain", "cpu-0", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
    kubectl("uncordon", "cpu-0")
    cluster.wait_for(lambda: training.syncer() not in ("", before), "another syncer to run")
    step = training.now()["status"]["progress"]["step"]
    training.wait(
        lambda obj: obj["status"]["progress"]["step"] > step and obj["status"]["learners"]["contributing"] == 2, "both to train on"
    )

    # The model of a job that trains: the pod of the export joins the syncer on its node, since the claim can be mounted on one only.
    told = kubectl("diloco", "export", NAME, "-n", JOBS, "-o", str(tmp_path))
    assert "on node cpu-0, where the claim is mounted" in told.stderr
    assert f"of job {NAME}, sha256 " in told.stdout

    # The end. Status tells of up to a second ago, in which some hundred steps may be taken.
    step = training.now()["status"]["progress"]["step"]
    kubectl("patch", "dilocojob", NAME, "-n", JOBS, "--type=merge", "-p", json.dumps({"spec": {"training": {"steps": step + 2000}}}))
    done = training.wait(is_true("Complete"), "the job to complete")
    assert done["status"]["progress"]["step"] == step + 2000, condition(done, "Complete")
    assert {unit["name"]: unit["attempt"] for unit in done["status"]["units"]} == {"v5p-0": 4, "h100-0": 3}
    # The ledger in the last snapshot, on the volume, is a set of samples, the status' tokens a sum over what arrived: a sample that
    # counted twice would be in the sum twice.
    last = SnapshotStore(cluster.volume("syncer-state") / "snapshots", keep=2).load_newest()
    assert last is not None
    assert last.t == step + 2000
    told = kubectl("diloco", "export", NAME, "-n", JOBS, "-o", str(tmp_path))
    assert f"outer step {step + 2000} of job {NAME}" in told.stdout
    for name, array in load_file(tmp_path / "model.safetensors").items():
        np.testing.assert_array_equal(array, last.tensors[f"value/{name}"])
    ledger = Ledger.from_json(last.meta["ledger"])
    assert done["status"]["progress"]["tokens"] == CONTEXT * ledger.summary().committed
    assert done["status"]["progress"]["tokens"] == sum(unit["tokens"] for unit in done["status"]["units"])
