"""Kueue on a real control plane, with its webhooks. It holds pod groups until their queue has quota for them.

See docs/decisions/0082-real-programs-in-tests.md.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from builders.companion import Companion, is_ready
from builders.control_plane import PROGRAMS, ControlPlane, provide_programs
from builders.ports import held_port

type Obj = dict[str, Any]

API = "kueue.x-k8s.io/v1beta2"
_GROUP = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = "workloads"
_HANDLED = {"clusterqueue", "cohort", "pod", "resourceflavor", "workload"}
"""Objects whose webhooks are installed. Of the others the cluster has none, or Kueue does not manage them here."""
_WITHOUT_PODS = ["kube-system", "kueue-system"]

# Kueue reads the certificate of its metrics from this folder and no other. A process with mounts of its own has another /etc there than the
# machine. The signal for the end of the parent is asked for again, since the kernel forgets it with the new mounts.
_WITH_ETC = "mount --bind {etc} /etc && exec setpriv --pdeathsig KILL -- {command}"


class Kueue:
    """One that runs. Made by `kueue`."""

    def __init__(self, plane: ControlPlane, process: Companion) -> None:
        self.plane, self.process = plane, process

    def flavor(self, name: str, labels: Mapping[str, str], *, taints: Sequence[Obj] = ()) -> None:
        """A ResourceFlavor: nodes with these labels. Its pods tolerate `taints`."""
        tolerations = [{"key": taint["key"], "operator": "Exists", "effect": taint["effect"]} for taint in taints]
        self._create("resourceflavors", "ResourceFlavor", name, {"nodeLabels": dict(labels), "tolerations": tolerations})

    def cluster_queue(self, name: str, quota: Mapping[str, Mapping[str, str]], **spec: Any) -> None:
        """A ClusterQueue for all namespaces. `quota`: for each flavor, in the order in which they are tried, the amounts of its resources,
        which are the same for all flavors. `spec` adds to the rest, such as `preemption`."""
        resources = list(next(iter(quota.values())))
        flavors = [
            {"name": flavor, "resources": [{"name": resource, "nominalQuota": amounts[resource]} for resource in resources]}
            for flavor, amounts in quota.items()
        ]
        given = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": resources, "flavors": flavors}], **spec}
        self._create("clusterqueues", "ClusterQueue", name, given)

    def local_queue(self, name: str, cluster_queue: str, *, namespace: str = "default") -> None:
        """The queue that pods name, and returns once it takes them."""
        self._create("localqueues", "LocalQueue", name, {"clusterQueue": cluster_queue}, namespace)
        self.plane.kubectl("-n", namespace, "wait", f"localqueue/{name}", "--for=condition=Active", "--timeout=180s")

    def set_quota(self, cluster_queue: str, flavor: str, resource: str, amount: str) -> None:
        """Another nominal quota."""
        path = f"{_GROUP}/clusterqueues/{cluster_queue}"
        groups = self.plane.request("GET", path)["spec"]["resourceGroups"]
        for group in groups:
            for each in group["flavors"]:
                for found in each["resources"]:
                    if (each["name"], found["name"]) == (flavor, resource):
                        found["nominalQuota"] = amount
        self.plane.request("PATCH", path, {"spec": {"resourceGroups": groups}}, content_type="application/merge-patch+json")

    def stop(self, cluster_queue: str, policy: str) -> None:
        """Hold admits no workload any more, HoldAndDrain evicts what is admitted as well, None goes on."""
        path = f"{_GROUP}/clusterqueues/{cluster_queue}"
        self.plane.request("PATCH", path, {"spec": {"stopPolicy": policy}}, content_type="application/merge-patch+json")

    def priority_class(self, name: str, value: int) -> None:
        """A WorkloadPriorityClass."""
        body = {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
        self.plane.request("POST", f"{_GROUP}/workloadpriorityclasses", body)

    def workloads(self, namespace: str = "default") -> dict[str, Obj]:
        """Each Workload of a namespace by its name, which is that of its pod group."""
        found = self.plane.request("GET", f"{_GROUP}/namespaces/{namespace}/{WORKLOADS}")["items"]
        return {each["metadata"]["name"]: each for each in found}

    def is_admitted(self, group: str, namespace: str = "default") -> bool:
        return condition(self.workloads(namespace).get(group, {}), "Admitted").get("status") == "True"

    def wait_admitted(self, group: str, namespace: str = "default") -> None:
        self.process.wait_until(self.plane, lambda: self.is_admitted(group, namespace), f"Kueue to admit {group}")

    def _create(self, plural: str, kind: str, name: str, spec: Obj, namespace: str = "") -> None:
        where = f"{_GROUP}/namespaces/{namespace}/{plural}" if namespace else f"{_GROUP}/{plural}"
        self.plane.request("POST", where, {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec})


def condition(obj: Obj, kind: str) -> Obj:
    """A condition of an object's status; empty if it is not there."""
    return next((each for each in obj.get("status", {}).get("conditions", ()) if each["type"] == kind), {})


@contextlib.contextmanager
def kueue(plane: ControlPlane, folder: Path) -> Iterator[Kueue]:
    """Kueue for plain pods, started, with its webhooks for pods and for its own objects. Linux; mounts need root, or user namespaces."""
    provide_programs(("kueue",))
    _install_definitions(plane)
    etc = (folder / "etc").resolve()
    for certificates in (etc / "kueue" / "metrics" / "certs", folder / "webhook"):
        certificates.mkdir(parents=True)
        for name, source in (("tls.crt", "server.crt"), ("tls.key", "server.key")):
            (certificates / name).write_bytes((plane.folder / source).read_bytes())
    webhook, health = held_port(), held_port()
    config = folder / "config.yaml"
    config.write_text(json.dumps(_configuration(webhook, health, folder / "webhook")))
    program = [str(PROGRAMS / "kueue"), "--config", str(config), "--feature-gates=VisibilityOnDemand=false", "--zap-log-level=info"]
    shell = _WITH_ETC.format(etc=shlex.quote(str(etc)), command=shlex.join(program))
    command = ["unshare", "--map-root-user", "--mount", "--", "sh", "-c", shell]
    process = Companion("kueue", command, folder, {"KUBECONFIG": str(plane.kubeconfig)})
    try:
        process.wait_until(plane, lambda: is_ready(health), "Kueue to be ready")
        hooks = _webhooks(plane, webhook)
        plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(hooks))
        try:
            yield Kueue(plane, process)
        finally:
            # Nothing answers at their address any more: with them, no pod could be made.
            plane.kubectl("delete", "--ignore-not-found", "-f", "-", input=yaml.safe_dump_all(hooks))
    finally:
        process.close()


def _install_definitions(plane: ControlPlane) -> None:
    files = sorted((PROGRAMS / "kueue-manifests").glob("kueue.x-k8s.io_*.yaml"))
    plane.kubectl("apply", "--server-side", "--force-conflicts", *(word for file in files for word in ("-f", str(file))))
    plane.wait_until_established(*(f"{file.stem.removeprefix('kueue.x-k8s.io_')}.kueue.x-k8s.io" for file in files))


def _configuration(webhook: int, health: int, certificates: Path) -> Obj:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["pod"]},
    }


def _webhooks(plane: ControlPlane, port: int) -> list[Obj]:
    """As Kueue's own manifests have them, but at an address of this machine."""
    ca = base64.b64encode(plane.ca_file.read_bytes()).decode()
    configurations: list[Obj] = list(yaml.safe_load_all((PROGRAMS / "kueue-manifests" / "manifests.yaml").read_text()))
    for configuration in configurations:
        configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
        configuration["webhooks"] = [hook for hook in configuration["webhooks"] if hook["name"].removesuffix(".kb.io")[1:] in _HANDLED]
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": ca}
            if hook["name"].endswith("pod.kb.io"):
                others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": _WITHOUT_PODS}
                hook["namespaceSelector"] = {"matchExpressions": [others]}
    return configurations
