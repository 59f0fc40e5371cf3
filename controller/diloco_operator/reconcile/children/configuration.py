"""The objects of a job besides pods and certificates: job file, Services and volume claim. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco import contract

from diloco_operator.api import names
from diloco_operator.api.spec import Spec
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.plan import Create, Delete
from diloco_operator.reconcile.children.outside import external_service
from diloco_operator.reconcile.children.pods import syncer_image
from diloco_operator.reconcile.children.retention import claim_metadata, is_claim_of
from diloco_operator.reconcile.config import OperatorConfig
from diloco_operator.reconcile.context import ReconcileContext, Rejection
from diloco_operator.reconcile.metadata import owned
from diloco_operator.reconcile.observe.children import Child
from diloco_operator.reconcile.observe.job import Job


@dataclass(frozen=True, slots=True)
class ConfigurationChanges:
    """What to create and delete, and whether pods may be created."""

    creates: Sequence[Create]
    deletes: Sequence[Delete]
    ready: bool
    """All objects are there and current, or created by this plan before any pod."""
    taken: Sequence[str]
    """`<kind> <name>` of objects that do not belong to the job."""
    deleting: Sequence[str]
    """`<kind> <name>` of objects that are being deleted, but not by the operator."""
    rejected: Sequence[Rejection]
    """Objects that the API server rejected and whose retry is not due yet."""
    kept: str = ""
    """Name of a volume claim that has the job's name for it but belongs to no job: an earlier job kept it, or it came from a backup. "" if
    there is none."""


def configuration_changes(context: ReconcileContext) -> ConfigurationChanges:
    """Create what is missing. A job file that no longer fits the spec is deleted, and created anew when it has gone.

    Services and volume claim are created once; later only the claim's metadata changes (`retention`). If a user deletes the claim, it
    stays until the syncer's pod ends, and the job works on until then.
    """
    observed, job = context.observed, context.observed.job
    derived = job.derived
    assert derived is not None, "the derived values of a spec that can be read are there"
    data = {contract.JOB_FILE_KEY: derived.job_file}
    external, existing = external_service(job, context.spec), observed.children.external_service
    wanted = [(names.SERVICES, observed.children.service, _service(job))]  # by which the hosts of a unit find each other
    if not context.is_part:
        wanted = [
            (names.CONFIG_MAPS, observed.children.config_map, _config_map(job, data)),
            *wanted,
            *([(names.SERVICES, existing, external)] if external is not None else []),
            (names.VOLUME_CLAIMS, observed.children.volume_claim, _volume_claim(job, context.spec, observed.config)),
        ]
    creates: list[Create] = []
    deletes: list[Delete] = []
    taken: list[str] = []
    deleting: list[str] = []
    kept, ready = "", True
    if external is None and existing is not None and existing.owner == job.uid and not existing.deleting:
        why = "spec.syncer.loadBalancer is not set any more"
        deletes.append(Delete(names.SERVICES, job.namespace, existing.name, existing.uid, why=why))
    for resource, child, obj in wanted:
        if child is None:
            creates.append(Create(resource, obj))
        elif not _is_ours(resource, child, job):
            ready = False
            if resource == names.VOLUME_CLAIMS and not child.owner:
                kept = child.name
            else:
                taken.append(f"{resource.kind} {child.name}")
        elif child.deleting:
            deleting.append(f"{resource.kind} {child.name}")
            ready = ready and context.syncer is not None and resource == names.VOLUME_CLAIMS
        elif resource == names.CONFIG_MAPS and child.job_file != derived.job_file_digest:
            deletes.append(Delete(resource, job.namespace, child.name, child.uid, why="the job file changed"))
            ready = False
    allowed, rejected = context.without_rejected(creates)
    return ConfigurationChanges(allowed, deletes, ready and not rejected, taken, deleting, rejected, kept)


def _is_ours(resource: Resource, child: Child, job: Job) -> bool:
    return is_claim_of(child, job) if resource == names.VOLUME_CLAIMS else child.owner == job.uid


def _config_map(job: Job, data: dict[str, str]) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owned(job, names.config_map_name(job.name)),
        "immutable": True,
        "data": data,
    }


def _service(job: Job) -> Obj:
    """The headless Service. It publishes pods that are not ready: the hosts of a unit must find each other while they start."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": owned(job, names.service_name(job.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_JOB: job.name},
            "ports": [
                # By the name grpc alone a service mesh would expect plaintext. Pods encrypt themselves, so a proxy can only pass bytes on:
                # https://istio.io/latest/docs/ops/configuration/traffic-management/protocol-selection/
                {"name": "grpc", "appProtocol": "tls", "port": contract.SYNCER_PORT, "targetPort": contract.SYNCER_PORT}
            ],
        },
    }


def _volume_claim(job: Job, spec: Spec, config: OperatorConfig) -> Obj:
    storage = spec.syncer.storage
    claim: Obj = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.size}}}
    if storage_class := storage.class_name or config.storage_class_name:
        claim["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": claim_metadata(job, names.volume_claim_name(job.name), storage.retain, syncer_image(spec, config)),
        "spec": claim,
    }
