"""A real control plane with real nodes: kubelets, containerd and pods in containers, in the sandbox of `python -m nodes run`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders import control_plane
from builders.control_plane import PROGRAMS, ControlPlane
from nodes import network, sandbox
from nodes.node import Node
from nodes.oci import Image

type Obj = dict[str, Any]

NODE_GRACE = "25s"
"""How long a node may be silent before it is NotReady: a lease is renewed every 2 s, and this machine is small."""
WAIT_SECONDS = 300.0
"""A limit for defects, not an expectation."""
_POLL_SECONDS = 0.2
CHART = control_plane.ROOT / "helm" / "diloco-operator"
_SERVICE_ADDRESS = "10.96.0.1"


@dataclass(frozen=True)
class Kind:
    """What a node claims to have, as a cloud would set it."""

    labels: Mapping[str, str]
    devices: Mapping[str, str]
    taints: Sequence[Mapping[str, str]] = ()


def scratch() -> Path:
    """The sandbox's folder on the disk. Says how the tests are run if this is none."""
    folder = os.environ.get(sandbox.SCRATCH_VARIABLE)
    assert folder, "tests/cluster/nodes runs in a sandbox of its own: hack/test-cluster.sh tests/cluster/nodes"
    return Path(folder)


class RealCluster:
    """The plane, its nodes, and what tests do to them."""

    def __init__(self, plane: ControlPlane, nodes: Mapping[str, Node], kinds: Mapping[str, Kind]) -> None:
        self.plane = plane
        self.nodes = nodes
        self._kinds = kinds

    # --- nodes ---
    def give_devices(self, name: str) -> None:
        """Wait until the node is Ready, and put its devices into its status, where a device plugin's would be."""
        self.wait_for(lambda: self.ready(name), f"node {name} to be Ready")
        devices = dict(self._kinds[name].devices)
        if not devices:
            return
        body = {"status": {"capacity": devices, "allocatable": devices}}
        path = f"/api/v1/nodes/{name}/status"
        self.plane.request("PATCH", path, body, content_type="application/strategic-merge-patch+json")

    def ready(self, name: str) -> bool:
        """Whether it is there, and its condition Ready is True."""
        found = self.find(f"/api/v1/nodes/{name}")
        return found is not None and any(
            each["type"] == "Ready" and each["status"] == "True" for each in found["status"].get("conditions", ())
        )

    # --- volumes and the chart ---
    def provide_volume(self, name: str) -> None:
        """A volume for one claim without a class."""
        self.plane.provide_volumes(scratch() / "volumes", 1, prefix=name)

    def volume(self, name: str) -> Path:
        """What is on it."""
        return scratch() / "volumes" / f"{name}-0"

    def provide_read_only_volume(self, name: str, namespace: str, folder: Path) -> None:
        """A claim of this name in the namespace, bound to a folder of this machine that any number of pods may read."""
        common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name}
        volume = {"capacity": {"storage": "10Gi"}, "hostPath": {"path": str(folder)}, "claimRef": claim}
        wanted = {"volumeName": name, "resources": {"requests": {"storage": "10Gi"}}}
        self.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {**common, **volume}},
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {**common, **wanted},
            },
        )

    def install_chart(self, namespace: str, values: Obj) -> None:
        """`helm install` of the operator; returns when its pod is ready."""
        given = scratch() / "values.json"
        given.write_text(json.dumps(values))
        done = self.plane.helm(
            *("install", "diloco", str(CHART), "--namespace", namespace, "--values", str(given), "--wait", "--timeout", "300s"), check=False
        )
        if done.returncode != 0:
            logs = self.plane.kubectl("logs", "-n", namespace, "-l", "app.kubernetes.io/name=diloco-operator", "--tail=40", check=False)
            raise AssertionError(f"helm install failed: {done.stderr}{logs.stdout}\n{self.story()}")

    # --- objects ---
    def find(self, path: str) -> Obj | None:
        """The object at that path of the API, None when there is none."""
        try:
            return self.plane.request("GET", path)
        except control_plane.RequestFailed as error:
            if error.code == 404:
                return None
            raise

    def apply(self, *objects: Obj) -> None:
        self.plane.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def wait_for(self, holds: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until `holds`. Fails with the state of the cluster when it takes longer than `seconds`."""
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds:.0f} s in vain for {what}.\n{self.story()}")
            time.sleep(_POLL_SECONDS)

    def story(self) -> str:
        """What a person would look at first."""
        told = []
        for command in (
            ("get", "nodes,pods,dilocojobs", "-A", "-o", "wide"),
            ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            ("get", "dilocojobs", "-A", "-o", "jsonpath={.items[*].status}"),
        ):
            done = self.plane.kubectl(*command, check=False)
            told.append(f"$ kubectl {' '.join(command)}\n{done.stdout[-6000:]}{done.stderr}")
        return "\n".join([*told, *(node.last_lines() for node in self.nodes.values())])


@contextlib.contextmanager
def real_cluster(kinds: Mapping[str, Kind], images: Mapping[str, Sequence[Image]]) -> Iterator[RealCluster]:
    """One node for every kind, by name, each with its images. Ends with the sandbox, except for the control plane."""
    folder = scratch()
    control_plane.provide_programs((*control_plane.PLANE, *control_plane.CLIENTS, "kubelet", "coredns"))
    with control_plane.ControlPlane(
        folder / "plane", node_grace=NODE_GRACE, api_server_args=["--kubelet-preferred-address-types=InternalIP"]
    ) as plane:
        network.start_forwarder(_SERVICE_ADDRESS, 443, int(plane.url.rpartition(":")[2]))
        network.start_dns(PROGRAMS / "coredns", plane.kubeconfig, folder / "dns")
        nodes = {
            name: Node(
                name,
                index,
                folder / name,
                kubelet=PROGRAMS / "kubelet",
                kubeconfig=plane.kubeconfig,
                dns=network.DNS_ADDRESS,
                labels=kind.labels,
                taints=kind.taints,
            )
            for index, (name, kind) in enumerate(kinds.items())
        }
        cluster = RealCluster(plane, nodes, kinds)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            for started in [threads.submit(node.start, images[name]) for name, node in nodes.items()]:
                started.result()
        for name in nodes:
            cluster.give_devices(name)
        yield cluster
