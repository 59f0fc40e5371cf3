"""The objects beside the pods: job file, service, volume claim. Pure. Certificates are in `certificates`."""

from __future__ import annotations

from dataclasses import dataclass

from diloco import contract

from diloco_operator.api import names
from diloco_operator.api.job import Spec
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.plan import Create, Delete
from diloco_operator.reconcile.children.metadata import owned
from diloco_operator.reconcile.observe.state import Child, Children, Job


@dataclass(frozen=True, slots=True)
class ConfigurationChanges:
    """What there is to do about them, and whether pods may be made."""

    creates: tuple[Create, ...]
    deletes: tuple[Delete, ...]
    ready: bool
    """All are there and current, or made by this plan before any pod."""
    taken: tuple[str, ...]
    """`<kind> <name>` of objects that belong to somebody else."""
    going: tuple[str, ...] = ()
    """`<kind> <name>` of objects that are being deleted, and not by us."""


def configuration_changes(job: Job, spec: Spec, children: Children, *, in_use: bool) -> ConfigurationChanges:
    """Make what is missing; a job file that is not the spec's any more is deleted, and made anew when it has gone.

    Service and volume claim are made once and do not change. `in_use`: the syncer's pod is there. Its volume claim, if somebody deletes
    it, stays until that pod ends, and work goes on meanwhile.
    """
    derived = job.derived
    assert derived is not None, "a spec that can be read has been worked out"
    data = {contract.JOB_FILE_KEY: derived.job_file}
    wanted = (
        (names.CONFIG_MAPS, children.config_map, _config_map(job, data)),
        (names.SERVICES, children.service, _service(job)),
        (names.VOLUME_CLAIMS, children.volume_claim, _volume_claim(job, spec)),
    )
    content = derived.job_data_digest
    creates: list[Create] = []
    deletes: list[Delete] = []
    taken: list[str] = []
    going: list[str] = []
    ready = True
    for resource, child, obj in wanted:
        if child is None:
            creates.append(Create(resource, obj))
        elif child.owner != job.uid:
            taken.append(f"{resource.kind} {child.name}")
            ready = False
        elif child.deleting:
            going.append(f"{resource.kind} {child.name}")
            ready = ready and in_use and resource == names.VOLUME_CLAIMS
        elif _outdated(resource, child, content):
            deletes.append(Delete(resource, job.namespace, child.name, child.uid, why="the job file changed"))
            ready = False
    return ConfigurationChanges(tuple(creates), tuple(deletes), ready, tuple(taken), tuple(going))


def _outdated(resource: Resource, child: Child, content: str) -> bool:
    return resource == names.CONFIG_MAPS and child.content != content


def _config_map(job: Job, data: dict[str, str]) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(job, names.config_map_name(job.name)),
        "immutable": True,
        "data": data,
    }


def _service(job: Job) -> Obj:
    """Headless, and with addresses before readiness: the hosts of a unit must find each other while they start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(job, names.service_name(job.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: job.name},
            "ports": [{"name": "grpc", "port": contract.SYNCER_PORT, "targetPort": contract.SYNCER_PORT}],
        },
    }


def _volume_claim(job: Job, spec: Spec) -> Obj:
    storage = spec.syncer.storage
    claim: Obj = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.size}}}
    if storage.class_name:
        claim["storageClassName"] = storage.class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": owned(job, names.volume_claim_name(job.name)),
        "spec": claim,
    }
