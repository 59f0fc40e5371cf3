"""The DiLoCoJob and the Secret of a part, by the job at home. Pure.

The operator makes them for `pools[].cluster`, and `kubectl diloco part` writes them.

See docs/decisions/0284-parts-in-other-clusters.md.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from diloco import contract

from diloco_operator.api import names
from diloco_operator.kube.client import Obj

_LEARNERS = ("restart", "timeouts", "stallTimeout")
"""Fields of spec.learners that are the same in a part."""
_SPEC = ("priorityClassName", "queueName", "podLabels", "placement", "retry")
"""Fields of spec that are the same in a part. Names in them are of objects of its own cluster."""


def part_manifest(job: str, spec: Mapping[str, Any], pools: Sequence[Obj], training: Mapping[str, Any], at: Obj) -> Obj:
    """Return the part's object without a namespace.

    Args:
        spec: of the job at home
        pools: the part's, as they stand in its spec
        training: as the job file of home says it
        at: `spec.syncer.at`
    """
    most = sum(pool["learners"]["max"] for pool in pools)
    learners = {"min": 1, "max": most, **_chosen(spec["learners"], _LEARNERS)}
    return {
        "apiVersion": names.DILOCO_JOBS.api_version,
        "kind": names.DILOCO_JOBS.kind,
        "metadata": {"name": job},
        "spec": {**_chosen(spec, _SPEC), "learners": learners, "pools": list(pools), "training": dict(training), "syncer": {"at": at}},
    }


def secret_data(at_home: Mapping[str, str], job_file: str) -> dict[str, str]:
    """Return `data` of the Secret that the part names in `syncer.at`. `at_home`: that of the Secret which home has signed for the part."""
    return {**at_home, contract.JOB_FILE_KEY: base64.b64encode(job_file.encode()).decode()}


def _chosen(fields: Mapping[str, Any], keys: Sequence[str]) -> Obj:
    return {key: fields[key] for key in keys if fields.get(key) not in (None, "", {})}
