"""The objects that a job has beside its pods, projected once from raw JSON for the caches. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diloco import contract

from diloco_operator.api import names
from diloco_operator.certificates.view import CertificateSecret
from diloco_operator.kube.client import Obj, Resource
from diloco_operator.kube.fields import (
    contents,
    controller_uid,
    fields,
    label_number,
    needed_string,
    objects,
    string,
)
from diloco_operator.reconcile.observe.part_secret import PartSecret
from diloco_operator.reconcile.observe.template_hash import digest, job_file_digest


@dataclass(frozen=True, slots=True)
class Child:
    """A ConfigMap, Service, PersistentVolumeClaim or PodTemplate of the job."""

    name: str
    uid: str
    owner: str
    job_file: str
    """Digest of what the job file in its data says, "" without one."""
    data: str
    """Digest of its data as it is, "" without a job file."""
    deleting: bool
    unit: str = ""
    attempt: int = 0
    """The attempt of `unit` whose hosts a host list names. Only host lists have these two."""
    version: str = ""
    """metadata.resourceVersion."""
    kept_for: str = ""
    """Uid of the job that a volume claim belongs to and outlives."""
    retain: str = ""
    """Its label LABEL_RETAIN."""
    syncer_image: str = ""
    """Its annotation ANNOTATION_SYNCER_IMAGE."""
    folder: str = ""
    """Its annotation ANNOTATION_FOLDER, "" in a cluster."""
    phase: str = ""
    """The phase of a volume claim: Pending, Bound or Lost; "" if it has none yet."""
    storage_class: str = ""
    """The storage class of a volume claim."""
    taken_up: bool = False
    """A scheduler has chosen a node for a volume claim, so its provisioner makes the volume."""
    ingress: tuple[str, ...] = ()
    """Host names and addresses of a Service's load balancer."""
    other_owners: str = ""
    """Its ownerReferences without the controller, as JSON; "" if there are none."""


def project_child(obj: Obj) -> Child:
    """Project the raw object. Raises `MalformedField`."""
    meta = fields(obj, "metadata")
    labels, annotations = fields(meta, "labels", "metadata"), fields(meta, "annotations", "metadata")
    others = [owner for owner in objects(meta, "ownerReferences", "metadata") if not owner.get("controller")]
    data = contents(obj, "data")
    data = data if contract.JOB_FILE_KEY in data else {}
    return Child(
        name=needed_string(meta, "name", "metadata"),
        uid=string(meta, "uid", "metadata"),
        owner=controller_uid(meta),
        job_file=job_file_digest(data) if data else "",
        data=digest(data) if data else "",
        deleting=bool(meta.get("deletionTimestamp")),
        unit=string(labels, names.LABEL_UNIT, "metadata.labels"),
        attempt=label_number(string(labels, names.LABEL_ATTEMPT, "metadata.labels")),
        version=string(meta, "resourceVersion", "metadata"),
        kept_for=string(annotations, names.ANNOTATION_JOB_UID, "metadata.annotations"),
        retain=string(labels, names.LABEL_RETAIN, "metadata.labels"),
        syncer_image=string(annotations, names.ANNOTATION_SYNCER_IMAGE, "metadata.annotations"),
        folder=string(annotations, names.ANNOTATION_FOLDER, "metadata.annotations"),
        other_owners=json.dumps(others) if others else "",
        phase=string(fields(obj, "status"), "phase", "status"),
        storage_class=string(fields(obj, "spec"), "storageClassName", "spec"),
        taken_up=bool(string(annotations, names.ANNOTATION_SELECTED_NODE, "metadata.annotations")),
        ingress=ingress_of(obj),
    )


_MOST_INGRESS = 8
"""Entries of one load balancer that are read; clouds give it one or two."""


def ingress_of(obj: Obj) -> tuple[str, ...]:
    """Host names and addresses of a Service's load balancer, as its cloud wrote them. Raises `MalformedField`."""
    at = "status.loadBalancer.ingress[]"
    balancer = fields(fields(obj, "status"), "loadBalancer", "status")
    addresses = []
    for entry in objects(balancer, "ingress", "status.loadBalancer")[:_MOST_INGRESS]:
        addresses += [text for key in ("hostname", "ip") if (text := string(entry, key, at))]
    return tuple(addresses)


@dataclass(frozen=True, slots=True)
class Children:
    """The objects under the names that the job uses (api.names), whatever owns them. None if there is no object of the name."""

    config_map: Child | None = None
    service: Child | None = None
    external_service: Child | None = None
    """The Service of type LoadBalancer before the syncer."""
    volume_claim: Child | None = None
    authority: CertificateSecret | None = None
    certificates: Mapping[str, CertificateSecret] = field(default_factory=dict)
    """Name -> every other Secret with the job's label."""
    part_secret: PartSecret | None = None
    """The Secret that `spec.syncer.at` names."""
    host_lists: Mapping[str, Child] = field(default_factory=dict)
    """Name -> every ConfigMap with the labels of the job and of a unit."""
    granted: Mapping[Resource, Mapping[str, Any]] = field(default_factory=dict)
    """Resource -> name -> the object with which the job asks a grantor, and in which the grantor answers (`grantors.interface.Watched`)."""
