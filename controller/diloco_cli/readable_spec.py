"""Reads what is valid in a job's spec although other fields are wrong, so that the user sees the problems of both at once. Pure.

See docs/decisions/0010-crd-and-limits.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diloco_operator.accelerators import CATALOGUE, CPU
from diloco_operator.api.names import LEARNER_CONTAINER
from diloco_operator.api.spec import PodTemplate, Pool, Spec
from pydantic import ValidationError

_HARDWARE = {"topology", "chipsPerHost", "hosts", "acceleratorsPerHost", "processesPerHost"}
_FAULTLESS: Mapping[str, Any] = {
    "name": "pool",
    "accelerator": CPU,
    "learners": {"max": 1},
    "template": {"spec": {"containers": [{"name": LEARNER_CONTAINER}]}},
}
"""Replaces required fields of a pool that cannot be read. No check complains about it."""


def readable_spec(given: object) -> Spec:
    """Read pools and templates of a job's spec, as far as they are valid. Pools keep their index. The rest is left out or replaced by
    something without faults."""
    spec = given if isinstance(given, dict) else {}
    pools, priority, syncer = spec.get("pools"), spec.get("priorityClassName"), spec.get("syncer")
    return Spec.model_validate(
        {
            "learners": _FAULTLESS["learners"],
            "training": {"steps": 1},
            "pools": [_pool(pool) for pool in pools] if isinstance(pools, list) and pools else [_FAULTLESS],
            "priorityClassName": priority if isinstance(priority, str) else "",
            "syncer": {"template": _template(syncer.get("template")) if isinstance(syncer, dict) else None},
        }
    )


def _pool(given: object) -> Pool:
    kept = dict(given) if isinstance(given, dict) else {}
    wrong: set[str] = set()
    while True:
        try:
            return Pool.model_validate({**_FAULTLESS, **kept})
        except ValidationError as error:
            wrong |= {str(problem["loc"][0]) for problem in error.errors()}
        kept = {name: value for name, value in kept.items() if name not in wrong}
        if wrong & _HARDWARE and kept.get("accelerator") in CATALOGUE:
            kept["accelerator"] = CPU  # without its hardware fields the kind could break rules


def _template(given: object) -> PodTemplate | None:
    try:
        return PodTemplate.model_validate(given)
    except ValidationError:
        return None
