"""Karpenter on a real control plane: a real autoscaler, whose machines are Node objects (its kwok provider).

It chooses, launches, registers, drains and deletes nodes as on any cloud. Nothing runs behind them: `builders.grown_nodes` does what their
kubelets would. See docs/decisions/0082-real-programs-in-tests.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.companion import Companion, is_ready
from builders.control_plane import PROGRAMS, ControlPlane, provide_programs
from builders.ports import held_port
from diloco_operator.accelerators import CATALOGUE

type Obj = dict[str, Any]

MADE_BY_KARPENTER = "kwok.x-k8s.io/node=fake"
"""Label selector of the nodes that it makes."""
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
_NODE_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
_DEFINITIONS = ("nodeclaims.karpenter.sh", "nodepools.karpenter.sh", "kwoknodeclasses.karpenter.kwok.sh")


@dataclass(frozen=True)
class Machine:
    """Hosts that a node pool can make, and how many there are of them."""

    name: str
    """Names the node pool and its instance type."""
    labels: Mapping[str, str]
    """Beside those that every node has."""
    devices: Mapping[str, str]
    taints: Sequence[Obj] = ()
    limit: int | None = None
    """At most so many nodes; 0: out of capacity. None: as many as are asked for."""
    price: float = 1.0
    """An hour. Karpenter prefers the cheaper of two machines that fit, and consolidates towards it."""
    spot: bool = False
    delay: str = "0s"
    """From the launch of a machine to its Node."""
    node: Mapping[str, str] = field(default_factory=lambda: {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"})

    @property
    def capacity_type(self) -> str:
        return "spot" if self.spot else "on-demand"


def a_machine(name: str, accelerator: str, *, topology: str = "", per_host: int = 0, **fields: Any) -> Machine:
    """Hosts of a kind of the catalogue, labelled and tainted as GKE labels them. `per_host`: accelerators, by default of the largest host.
    TPU: `topology` of a slice of one host."""
    kind = CATALOGUE[accelerator]
    count = per_host or kind.host_sizes[-1]
    labels = kind.labels[0].on_node(topology=topology, per_host=count)
    taints = [{"key": kind.resource, "value": "present", "effect": "NoSchedule"}]
    return Machine(name, labels, {kind.resource: str(count)}, taints, **fields)


def h100(name: str = "h100", **fields: Any) -> Machine:
    """Hosts with eight H100."""
    return a_machine(name, "nvidia-h100-80gb", **fields)


def v6e(name: str = "v6e", **fields: Any) -> Machine:
    """Slices of one host with four v6e chips."""
    return a_machine(name, "tpu-v6e", topology="2x2", per_host=4, **fields)


def v5p(name: str = "v5p", **fields: Any) -> Machine:
    """Slices of one host with four v5p chips."""
    return a_machine(name, "tpu-v5p", topology="2x2x1", **fields)


class Karpenter:
    """One that runs. Made by `karpenter`."""

    def __init__(self, plane: ControlPlane, process: Companion) -> None:
        self.plane, self.process = plane, process

    @property
    def claims(self) -> list[Obj]:
        """NodeClaims: the machines that it pays for."""
        found: list[Obj] = self.plane.request("GET", NODE_CLAIMS)["items"]
        return found

    def claims_of(self, pool: str) -> list[str]:
        return [claim["metadata"]["name"] for claim in self.claims if claim["metadata"]["labels"]["karpenter.sh/nodepool"] == pool]

    def nodes(self, count: int) -> list[str]:
        """The names of its nodes, once there are so many that pods may be bound to, and no other."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [str((claim.get("status") or {}).get("nodeName", "")) for claim in self.claims if _is_initialized(claim)]
            return len(found) == len(self.claims) == count

        self.process.wait_until(self.plane, there, f"{count} initialized NodeClaims")
        return found

    def limit(self, pool: str, nodes: int) -> None:
        """From now on the pool has so many nodes at most."""
        self.plane.request(
            "PATCH", f"{NODE_POOLS}/{pool}", {"spec": {"limits": {"nodes": str(nodes)}}}, content_type="application/merge-patch+json"
        )

    def consolidate_after(self, pool: str, time: str) -> None:
        """From now on a node that is empty or badly used is given up after this time; "Never": never."""
        patch = {"spec": {"disruption": {"consolidateAfter": time}}}
        self.plane.request("PATCH", f"{NODE_POOLS}/{pool}", patch, content_type="application/merge-patch+json")

    def give_back(self) -> None:
        """Delete all machines, without the wait for unused ones, and return when they are gone."""
        self.plane.kubectl("delete", "nodeclaims", "--all", "--wait=false")
        self.wait_empty()

    def starve(self, times: int) -> None:
        """Let it run for 2 s in 15, so many times, as if the machine were busy with other work. After 15 s it judges a second time whether
        a node is empty; the pods that wait it looks at a second later."""
        for _ in range(times):
            os.kill(self.process.pid, signal.SIGSTOP)
            try:
                time.sleep(13.0)
            finally:
                os.kill(self.process.pid, signal.SIGCONT)
            time.sleep(2.0)

    def wait_empty(self) -> None:
        self.process.wait_until(self.plane, lambda: not self.claims, "no NodeClaim to be left")

    def add_pool(self, machine: Machine, *, consolidate_after: str = "1s", weight: int | None = None) -> None:
        """A node pool of these machines. An empty or badly used node is given up after `consolidate_after`; "Never": never. Karpenter tries
        pools with more `weight` (1 to 100) first."""
        node_class = {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": machine.name},
            "spec": {"nodeRegistrationDelay": machine.delay},
        }
        self.plane.request("POST", _NODE_CLASSES, node_class)
        self.plane.request("POST", NODE_POOLS, _node_pool(machine, consolidate_after, weight))


def _is_initialized(claim: Obj) -> bool:
    conditions = (claim.get("status") or {}).get("conditions", ())
    return any(each["type"] == "Initialized" and each["status"] == "True" for each in conditions)


def _node_pool(machine: Machine, consolidate_after: str, weight: int | None) -> Obj:
    # With both capacity types allowed, Karpenter consolidates to spot alone, and its kwok provider panics where there is no such machine.
    wanted = {"node.kubernetes.io/instance-type": machine.name, "karpenter.sh/capacity-type": machine.capacity_type}
    template = {
        "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()],
        "taints": list(machine.taints),
        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": machine.name},
        "expireAfter": "Never",
    }
    spec: Obj = {
        "template": {"metadata": {"labels": dict(machine.labels)}, "spec": template},
        # By default a tenth of the nodes may be disrupted at once, which is none of two.
        "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": consolidate_after,
            "budgets": [{"nodes": "100%"}],
        },
        **({"limits": {"nodes": str(machine.limit)}} if machine.limit is not None else {}),
        **({"weight": weight} if weight is not None else {}),
    }
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": machine.name}, "spec": spec}


def _instance_type(machine: Machine) -> Obj:
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [machine.capacity_type]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
    ]
    return {
        "name": machine.name,
        "offerings": [{"Price": machine.price, "Available": True, "Requirements": requirements}],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {**machine.node, **machine.devices},
    }


@contextlib.contextmanager
def karpenter(plane: ControlPlane, folder: Path, machines: Sequence[Machine]) -> Iterator[Karpenter]:
    """Karpenter, started, and a node pool for each of `machines`. It makes no other machines, since it reads their list at its start.

    It gathers pods as by default: until none has come for a second, for ten at most. Every ten seconds it looks at a pod that is not bound
    yet, and keeps its node for twice that longest time, ten seconds at least. With a longest time of two seconds there are gaps in which
    the node counts as empty: of some milliseconds, and of seconds on a busy machine.
    """
    provide_programs(("karpenter",))
    folder.mkdir(parents=True, exist_ok=True)
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str((PROGRAMS / "karpenter-manifests").resolve()))
    plane.wait_until_established(*_DEFINITIONS)
    instance_types = folder / "instance-types.json"
    instance_types.write_text(json.dumps([_instance_type(machine) for machine in machines]))
    metrics, health = held_port(), held_port()
    environment = {
        "KUBECONFIG": str(plane.kubeconfig),
        "INSTANCE_TYPES_FILE_PATH": str(instance_types),
        "KUBERNETES_MIN_VERSION": "1.19.0-0",
        "KARPENTER_SERVICE": "karpenter",
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_WEBHOOK": "true",
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": str(metrics),
        "HEALTH_PROBE_PORT": str(health),
        "CPU_REQUESTS": "1000",
        "MEMORY_LIMIT": str(1 << 30),
        "BATCH_IDLE_DURATION": "1s",
        "BATCH_MAX_DURATION": "10s",
    }
    process = Companion("karpenter", [str(PROGRAMS / "karpenter")], folder, environment)
    try:
        found = Karpenter(plane, process)
        process.wait_until(plane, lambda: is_ready(health), "Karpenter to be ready")
        for machine in machines:
            found.add_pool(machine)
        yield found
    finally:
        process.close()
