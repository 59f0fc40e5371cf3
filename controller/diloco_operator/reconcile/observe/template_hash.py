"""What pods and the job file are judged by: hashes of what the user wrote, so that another version of the operator finds them up to date.

A hash covers the templates and those fields of the spec that reach a pod, as the user wrote them. It covers nothing that the operator adds
or derives: images, environment, security context, the catalogue, defaults of fields that did not exist yet. Its form has a number and does
not change: the pods of the version before are judged by it.

See docs/decisions/0136-upgrades-restart-nothing.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from diloco import contract

from diloco_operator.api.spec import PodTemplate, Pool, Spec

_FORM = "1"
FIRST_DEFAULTS: Mapping[str, Any] = {
    "syncInterval": 24,
    "fragments": 24,
    "overlapSteps": 2,
    "quorum": 1,
    "grace": {"maxSteps": 1.0, "safetyFactor": 0.8},
    "merge": {"method": "RDA", "embeddings": "Average"},
    "outerOptimizer": {"learningRate": 0.7, "momentum": 0.9},
    "compression": "BFloat16",
    "checkpoint": {"everySteps": 240, "keep": 3, "uri": "", "learners": "Never"},
    "tokens": None,
}
"""For every field of spec.training, the default that it had first. A field with this value counts as not written, so that a field which a
new version adds changes no hash. Add a line with each field that gets a default; never change one, also not when the default changes."""


def learner_hash(pool: Pool, priority_class: str = "") -> str:
    """Hash the learner pods of a pool. `priority_class`: see `hashed_classes`."""
    # Their hosts are part of it: a change of the pool's hardware is a change of its pods.
    hardware: dict[str, object] = {
        "accelerator": pool.accelerator,
        "topology": pool.topology,
        "chipsPerHost": pool.chips_per_host,
        "hosts": pool.hosts or 1,
        "acceleratorsPerHost": pool.accelerators_per_host,
    }
    if (pool.processes_per_host or 1) > 1:  # one is what a host has where nothing is written
        hardware["processesPerHost"] = pool.processes_per_host
    if pool.shared_memory is not None:
        hardware["sharedMemory"] = pool.shared_memory
    return _in_form({"template": _template(pool.template), "priorityClassName": priority_class, "hardware": hardware})


def syncer_hash(spec: Spec, priority_class: str = "") -> str:
    """Hash the syncer's pod, the job file included: a syncer reads it once. `priority_class`: see `hashed_classes`."""
    template = spec.syncer.template
    training = _as_written(spec.training.model_dump(mode="json", by_alias=True), FIRST_DEFAULTS)
    written: dict[str, object] = {
        "template": _template(template) if template else None,
        "priorityClassName": priority_class,
        "training": training,
    }
    if spec.start_from is not None:
        written["startFrom"] = spec.start_from.model_dump(mode="json", by_alias=True)
    return _in_form(written)


def hashed_classes(spec: Spec) -> frozenset[str]:
    """Return what stands for the PriorityClass in hashes of pods that are up to date: nothing, since it orders jobs and pods that run need
    not have it; or the class, in those of an operator that replaced pods with it."""
    return frozenset(("", spec.priority_class_name))


def job_file_digest(data: Mapping[str, Any]) -> str:
    """Digest what the job file in a ConfigMap's data says. Job files that say the same have the same digest, whatever version wrote them.
    Data without a job file has a digest that no job file has."""
    try:
        said = json.loads(data[contract.JOB_FILE_KEY]) if data.keys() == {contract.JOB_FILE_KEY} else None
        if isinstance(said, dict) and isinstance(said.get("training"), dict):
            return digest({**said, "training": _as_written(said["training"], FIRST_DEFAULTS)})
    except (ValueError, RecursionError):
        pass  # no JSON, text that is no Unicode, or nested without end: not written by the operator
    return f"unreadable-{digest(data)}"


def digest(value: object) -> str:
    """Return a short stable hash of JSON-like data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _in_form(written: object) -> str:
    return f"{_FORM}-{digest(written)}"


def _template(template: PodTemplate) -> dict[str, Any]:
    """Write a template without maps that are empty: whether an API server fills them in depends on its CRD."""
    meta = {key: value for key, value in (("labels", template.metadata.labels), ("annotations", template.metadata.annotations)) if value}
    return {"spec": template.spec, "metadata": meta}


def _as_written(values: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from their first default."""
    found = {}
    for key, value in values.items():
        default = first.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            value = _as_written(value, default)
            default = {}
        if value != default:
            found[key] = value
    return found
