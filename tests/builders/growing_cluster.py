"""A real control plane whose nodes come and go: simulated kubelets for nodes that others make, and the words of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.control_plane import ControlPlane, RequestFailed
from builders.grown_nodes import grown_nodes
from builders.karpenter import MADE_BY_KARPENTER, Karpenter
from builders.kube_jobs import KubeCluster
from builders.local import is_gone, wait_for
from builders.nodes import a_fleet_node
from diloco_operator.api.names import PODS
from diloco_operator.kube.client import Obj
from diloco_operator.kube.rest import RestClient, load_config
from simulated_nodes.joined import SimulatedNodes
from simulated_nodes.names import LABEL_SERVER

_KINDS = "dlj,pods,configmaps,secrets,services,pvc"


class GrowingCluster(KubeCluster):
    """`nodes` runs the pods of all nodes, as processes. One node for syncers, `cpu-0`, is always there."""

    def __init__(self, control: ControlPlane, client: RestClient, simulated: SimulatedNodes) -> None:
        self.control, self.client, self.simulated = control, client, simulated

    async def run_pod(self, name: str, devices: Mapping[str, str], *, selector: Mapping[str, str] | None = None, **fields: Any) -> Obj:
        """A bare pod that sleeps and tolerates the taints of nodes with such devices. `fields`: its labels and annotations, and more of its
        spec under `spec`."""
        container = {"name": "main", "image": "image:1", "command": ["sleep", "10000"], "resources": {"limits": dict(devices)}}
        spec = {
            "containers": [container],
            "nodeSelector": dict(selector or {}),
            "tolerations": [{"key": key, "operator": "Exists"} for key in devices],
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            **fields.pop("spec", {}),
        }
        return await self.client.create(PODS, {"metadata": {"name": name, "namespace": "default", **fields}, "spec": spec})

    async def pod(self, name: str, holds: Any) -> Obj:
        """The pod, as soon as it is so; empty once it is gone."""
        return await wait_for(self.client, PODS, "default", name, holds) or {}

    async def delete_pod(self, name: str) -> None:
        await self.client.delete(PODS, "default", name)
        await self.pod(name, is_gone)

    async def without_machines(self, autoscaler: Karpenter) -> None:
        """Wait until the autoscaler has none. It looks for unused nodes every 10 s, and looks again 15 s later."""
        await asyncio.to_thread(autoscaler.wait_empty)

    async def told(self, about: str, reason: str, *, source: str) -> str:
        """The message of the first Event about an object with this reason and from this source, once there is one."""
        messages: list[str] = []

        def there() -> bool:
            events = self.control.request("GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={about}")["items"]
            messages.extend(
                event["message"]
                for event in events
                if event["reason"] == reason and source in (event["source"].get("component"), event.get("reportingComponent"))
            )
            return bool(messages)

        await asyncio.to_thread(self.control.wait_for, there, f"an Event {reason} of {source} about {about}")
        return messages[0]

    def log(self, pod: str) -> str:
        return "".join(path.read_text() for path in self.simulated.kubelet.logs("default", pod))


def _force_away(control: ControlPlane) -> None:
    """Every pod, at once. Kueue holds those of a group for as long as they may have successors."""
    for pod in control.request("GET", "/api/v1/namespaces/default/pods")["items"]:
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        with contextlib.suppress(RequestFailed):  # it has gone meanwhile
            control.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type="application/merge-patch+json")
            control.request("DELETE", path, {"gracePeriodSeconds": 0})


@contextlib.asynccontextmanager
async def growing_cluster(
    control: ControlPlane,
    folder: Path,
    autoscaler: Karpenter | None = None,
    *,
    nodes: str = MADE_BY_KARPENTER,
    fleet: Sequence[Obj] = (),
) -> AsyncIterator[GrowingCluster]:
    """The nodes that the selector `nodes` selects are taken on; those of `fleet` are there from the beginning. At the end jobs, pods and
    the autoscaler's machines are deleted."""
    there = [a_fleet_node("cpu-0", pods=1000), *fleet]
    try:
        async with (
            RestClient.connect(load_config(control.kubeconfig)) as client,
            SimulatedNodes(client, folder / "state", there, all_pods=True) as simulated,
            grown_nodes(client, simulated.kubelet, nodes),
        ):
            try:
                yield GrowingCluster(control, client, simulated)
            finally:  # also of a test that failed: the next one begins with an empty cluster
                control.kubectl("delete", _KINDS, "--all", "--wait=false")
                _force_away(control)
                if autoscaler:
                    autoscaler.give_back()
    finally:
        control.kubectl("delete", "nodes,storageclasses", "-l", LABEL_SERVER)
