"""[peer-jobset] One pod of many fails: JobSet v0.12.0 with its default failure policy beside ours, each on a real control plane.

As in `blast-radius`, there are 64 units of 4 pods. JobSet has a Job of 4 pods for each unit, and Kubernetes' own Job controller makes the
pods. The time runs from the answer to the status write that marks a pod Failed until all pods exist again. No kubelet runs, so old pods are
gone as soon as they are deleted.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from builders.companion import Companion, is_ready
from builders.control_plane import PROGRAMS, ControlPlane, provide_programs
from builders.ports import held_port
from diloco_operator.api import names
from diloco_operator.kube.client import Client, Obj, Resource
from diloco_operator.kube.rest import RestClient, load_config

from benchmarks.figure import Figure, rounded
from benchmarks.kube import blast_radius
from benchmarks.kube.rig import mark

LIMIT = 1.0
VERSION = "v0.12.0"
JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
_OF_JOBSET = "jobset.sigs.k8s.io/jobset-name"
_NAMESPACE, _NAME = "default", "blast"
_WITHIN = 240.0
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    ours: blast_radius.Size
    failures: int
    """Failures for JobSet, which makes all pods again each time."""


FULL = Size(blast_radius.Size(units=64, failures=5), failures=3)
SMOKE = Size(blast_radius.Size(units=4, failures=1), failures=1)


def job_set(units: int, hosts: int) -> Obj:
    """A JobSet with one Job for each unit. A Job fails with its first pod, as in JobSet's own examples of training."""
    container = {"name": "train", "image": "train"}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job_template = {"spec": {"parallelism": hosts, "completions": hosts, "backoffLimit": 0, "template": pod}}
    replicated = {"name": "unit", "replicas": units, "template": job_template}
    meta = {"name": _NAME, "namespace": _NAMESPACE}
    return {"metadata": meta, "spec": {"failurePolicy": {"maxRestarts": 1000}, "replicatedJobs": [replicated]}}


@contextmanager
def controller(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """Run JobSet's controller with its webhooks for the time of the context, which begins when they are ready."""
    definitions = PROGRAMS / "jobset-manifests" / "jobset.x-k8s.io_jobsets.yaml"
    plane.kubectl("apply", "--server-side", "-f", str(definitions))
    plane.wait_until_established("jobsets.jobset.x-k8s.io")
    certificates = folder / "webhook"
    certificates.mkdir(parents=True)
    for name, source in (("tls.crt", "server.crt"), ("tls.key", "server.key")):
        (certificates / name).write_bytes((plane.folder / source).read_bytes())
    webhook, health = held_port(), held_port()
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [str(PROGRAMS / "jobset"), "--config", str(folder / "config.yaml"), "--zap-log-level=error"]
    process = Companion("jobset", command, folder, {"KUBECONFIG": str(plane.kubeconfig)})
    try:
        process.wait_until(plane, lambda: is_ready(health), "JobSet to be ready")
        plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(webhooks(plane.ca_file.read_bytes(), webhook)))
        yield
    finally:
        process.close()


def webhooks(ca: bytes, port: int) -> list[Obj]:
    """The webhooks of JobSet's manifests, at an address of this machine. The one for pods sees only JobSet's own pods, as in JobSet's
    patch."""
    configurations: list[Any] = list(yaml.safe_load_all((PROGRAMS / "jobset-manifests" / "manifests.yaml").read_text()))
    for configuration in configurations:
        configuration["metadata"]["name"] = f"jobset-{configuration['metadata']['name']}"
        for hook in configuration["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": base64.b64encode(ca).decode()}
            if hook["name"].endswith("pod.kb.io"):
                hook["objectSelector"] = {"matchExpressions": [{"key": _OF_JOBSET, "operator": "Exists"}]}
    return configurations


def in_phase(phase: str) -> Callable[[Obj], Obj]:
    """Makes a pod's status with this phase, which is all that Kubernetes' Job controller reads of it."""
    return lambda _: {"phase": phase}


async def _pods(client: Client) -> list[Obj]:
    return (await client.list(names.PODS, _NAMESPACE, label_selector=f"{_OF_JOBSET}={_NAME}")).items


async def whole(client: Client, count: int, without: set[str]) -> list[Obj]:
    """Wait until there are `count` pods that have not failed and are not being deleted, and at least one uid of `without` is gone."""
    async with asyncio.timeout(_WITHIN):
        while True:
            pods = await _pods(client)
            good = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") != "Failed"]
            uids = {pod["metadata"]["uid"] for pod in good}
            if len(good) == count and not without <= uids:
                return good
            await asyncio.sleep(_POLL)


async def theirs(size: Size) -> tuple[list[float], list[int]]:
    """For each failure the seconds until all pods exist again, and how many of them are new."""
    units, hosts = size.ours.units, blast_radius.HOSTS
    with (
        tempfile.TemporaryDirectory() as directory,
        ControlPlane(Path(directory) / "plane", scheduler=False) as plane,
        controller(plane, Path(directory) / "jobset"),
    ):
        async with RestClient.connect(load_config(str(plane.kubeconfig))) as client:
            await client.create(JOBSETS, job_set(units, hosts))
            pods = await whole(client, units * hosts, {""})
            seconds, again = [], []
            for _ in range(size.failures):
                await mark(client, pods, in_phase("Running"))
                before = {pod["metadata"]["uid"] for pod in pods}
                await mark(client, [pods[0]], in_phase("Failed"))
                begun = time.perf_counter()
                pods = await whole(client, units * hosts, before)
                seconds.append(time.perf_counter() - begun)
                again.append(sum(pod["metadata"]["uid"] not in before for pod in pods))
            return seconds, again


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Yield the figure: our seconds ÷ JobSet's, in medians."""
    provide_programs(("etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "jobset"))
    size = SMOKE if smoke else FULL
    seconds, again = asyncio.run(theirs(size))
    ours = asyncio.run(blast_radius.replacement_times(size.ours))
    value = median(ours) / median(seconds)
    details = {
        "ours": {"seconds": round(median(ours), 4), "made_again": blast_radius.HOSTS, "each": rounded(ours, 4)},
        "theirs": {"seconds": round(median(seconds), 4), "made_again": max(again), "each": rounded(seconds, 4)},
        "pods": size.ours.units * blast_radius.HOSTS,
        "version": VERSION,
    }
    yield Figure("peer-jobset", value, "seconds ÷ theirs", LIMIT, value <= LIMIT, size.failures, details)
