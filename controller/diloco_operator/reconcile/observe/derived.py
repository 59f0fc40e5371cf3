"""What follows from a spec alone: computed once per generation, not in every reconcile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diloco import contract

from diloco_operator.api import names
from diloco_operator.api.spec import Pool, Spec
from diloco_operator.fleet.devices import claimed_devices
from diloco_operator.fleet.resources import Resources, learner_resources, resources_of
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.fleet.slices import Shape
from diloco_operator.reconcile.observe.shared_memory import counted
from diloco_operator.reconcile.observe.template import container_named
from diloco_operator.reconcile.observe.template_hash import hashed_classes, job_file_digest, learner_hash, syncer_hash


@dataclass(frozen=True, slots=True)
class Derived:
    shapes: Mapping[str, Shape]
    """Pool -> the hardware of one unit."""
    needs: Mapping[str, Resources]
    """Pool -> what the pod of each host requests."""
    learner_hashes: Mapping[str, str]
    """Pool -> the hash with which its new learner pods are marked."""
    known_hashes: Mapping[str, frozenset[str]]
    """Pool -> hashes with which a learner pod is up to date."""
    job_file: str
    """The mounted job file, JSON."""
    job_file_digest: str
    """The digest of what the job file says."""
    syncer_hash: str
    """The hash with which a new syncer's pod is marked."""
    known_syncer_hashes: frozenset[str]
    """Hashes with which the syncer's pod is up to date."""


def derive(spec: Spec, *, name: str, namespace: str, uid: str) -> Derived:
    file = contract.JobFile(name=name, namespace=namespace, uid=uid, training=spec.training, start_from=spec.start_from)
    job_file, classes = file.model_dump_json(by_alias=True, exclude_none=True), hashed_classes(spec)
    return Derived(
        shapes={pool.name: shape_of(pool) for pool in spec.pools},
        needs={pool.name: host_needs(pool) for pool in spec.pools},
        learner_hashes={pool.name: learner_hash(pool) for pool in spec.pools},
        known_hashes={pool.name: frozenset(learner_hash(pool, priority_class) for priority_class in classes) for pool in spec.pools},
        job_file=job_file,
        job_file_digest=job_file_digest({contract.JOB_FILE_KEY: job_file}),
        syncer_hash=syncer_hash(spec),
        known_syncer_hashes=frozenset(syncer_hash(spec, priority_class) for priority_class in classes),
    )


def host_needs(pool: Pool) -> Resources:
    """What the pod of each host of a unit requests: its template, with the accelerators and the shared memory that the operator adds."""
    resource, count = pool.shape.resource, pool.shape.accelerators_per_host
    needs = learner_resources(counted(pool))
    if not resource or claimed_devices(pool.template.spec):
        return needs
    # The operator's count replaces what the learner's container requests; other containers may request accelerators besides.
    learner = container_named(pool.template.spec, names.LEARNER_CONTAINER)
    requested = 0
    if learner is not None:
        requested = dict(resources_of({"containers": [learner]}).devices).get(resource, 0)
    devices = dict(needs.devices)
    devices[resource] = devices.get(resource, 0) - requested + count
    return needs._replace(devices=tuple(sorted(devices.items())))
