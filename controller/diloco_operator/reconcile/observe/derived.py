"""What follows from a spec alone: computed once per generation, not in every reconcile. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from diloco import contract

from diloco_operator.api.job import Pool, Spec
from diloco_operator.fleet.slice_kinds import shape_of
from diloco_operator.fleet.slices import Shape


@dataclass(frozen=True, slots=True)
class Derived:
    shapes: Mapping[str, Shape]
    """Pool -> the hardware of one unit."""
    learner_hashes: Mapping[str, str]
    """Pool -> hash of what its learner pods are made from."""
    job_file: str
    """The mounted job file, JSON."""
    job_data_digest: str
    """Of the ConfigMap's data that holds the job file."""
    syncer_hash: str
    """Of what the syncer's pod is made from."""


def derive(spec: Spec, *, name: str, namespace: str, uid: str) -> Derived:
    job_file = contract.JobFile(name=name, namespace=namespace, uid=uid, training=spec.training).model_dump_json(by_alias=True)
    content = digest({contract.JOB_FILE_KEY: job_file})
    return Derived(
        shapes={pool.name: shape_of(pool) for pool in spec.pools},
        learner_hashes={pool.name: _learner_hash(spec, pool) for pool in spec.pools},
        job_file=job_file,
        job_data_digest=content,
        syncer_hash=_syncer_hash(spec, content),
    )


def _learner_hash(spec: Spec, pool: Pool) -> str:
    """Of everything a user wrote that learner pods of this pool are made from."""
    shape = pool.shape
    return digest(
        [
            pool.template.spec,
            pool.template.metadata.labels,
            pool.template.metadata.annotations,
            spec.priority_class_name,
            [shape.accelerator, shape.topology, shape.hosts, shape.accelerators_per_host],
        ]
    )


def _syncer_hash(spec: Spec, job_file_digest: str) -> str:
    """Of everything a user wrote that the syncer's pod is made from, the job file included: a syncer reads it once."""
    template = spec.syncer.template
    return digest(
        [template.spec, template.metadata.labels, template.metadata.annotations, spec.priority_class_name, job_file_digest]
        if template
        else [spec.priority_class_name, job_file_digest]
    )


def digest(value: object) -> str:
    """A short stable hash of JSON-like data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
