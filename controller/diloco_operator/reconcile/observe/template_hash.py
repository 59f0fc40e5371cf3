"""Hashes that tell whether pods and the job file are up to date. Another version of the operator finds the same hashes.

A hash covers the templates and those fields of the spec that reach a pod, as the user wrote them. It covers nothing that the operator adds
or derives: images, environment, security context, the catalogue, defaults of fields that did not exist yet. Its form has a number and does
not change, because it judges the pods that an older version made.

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
"""The first default of each field of spec.training. A field with this value counts as not written, so a field that a new version adds
changes no hash. Add a line for each new field with a default. Never change a line, even if the default changes."""


def learner_hash(pool: Pool, priority_class: str = "") -> str:
    """Hash the learner pods of a pool. `priority_class`: see `hashed_classes`."""
    # Hardware is hashed, too: if a pool changes its hardware, its pods are outdated.
    hardware: dict[str, object] = {
        "accelerator": pool.accelerator,
        "topology": pool.topology,
        "chipsPerHost": pool.chips_per_host,
        "hosts": pool.hosts or 1,
        "acceleratorsPerHost": pool.accelerators_per_host,
    }
    if (pool.processes_per_host or 1) > 1:  # 1 is the default, and counts as not written
        hardware["processesPerHost"] = pool.processes_per_host
    if pool.shared_memory is not None:
        hardware["sharedMemory"] = pool.shared_memory
    return _in_form({"template": _template(pool.template), "priorityClassName": priority_class, "hardware": hardware})


def syncer_hash(spec: Spec, priority_class: str = "") -> str:
    """Hash the syncer's pod, and with it the job file, which a syncer reads only once. `priority_class`: see `hashed_classes`."""
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
    """The values of `priority_class` in hashes of pods that are up to date. Normally "", because a class orders jobs, and pods that run
    need no change for it. Pods of an older operator, which replaced pods for it, have the class itself in their hash."""
    return frozenset(("", spec.priority_class_name))


def job_file_digest(data: Mapping[str, Any]) -> str:
    """Digest what the job file in a ConfigMap's data says. Files that say the same have one digest, whatever version wrote them. Data that
    is no job file has a digest that no job file has."""
    try:
        job_file = json.loads(data[contract.JOB_FILE_KEY]) if data.keys() == {contract.JOB_FILE_KEY} else None
        if isinstance(job_file, dict) and isinstance(job_file.get("training"), dict):
            return digest({**job_file, "training": _as_written(job_file["training"], FIRST_DEFAULTS)})
    except (ValueError, RecursionError):
        pass  # no JSON, no valid Unicode, or nested too deep: the operator did not write this
    return f"unreadable-{digest(data)}"


def digest(value: object) -> str:
    """A short stable hash of JSON-like data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _in_form(written: object) -> str:
    return f"{_FORM}-{digest(written)}"


def _template(template: PodTemplate) -> dict[str, Any]:
    """The template without empty maps: whether an API server fills them in depends on its CRD."""
    meta = {key: value for key, value in (("labels", template.metadata.labels), ("annotations", template.metadata.annotations)) if value}
    return {"spec": template.spec, "metadata": meta}


def _as_written(values: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that differ from their first default."""
    written = {}
    for key, value in values.items():
        default = first.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            value = _as_written(value, default)
            default = {}
        if value != default:
            written[key] = value
    return written
