"""DiLoCoJobs for tests and benchmarks, as raw API objects.

`a_manifest(min=1, pools=[tpu_pool(), gpu_pool(hosts=2)], quorum=1)` is a job as a user writes it; `a_job().with_pool("v5p").build()` is one
as the API server stores it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from diloco_operator.api.names import API_VERSION, KIND

type Obj = dict[str, Any]

JOB_UID = "job-uid-1"
_HARDWARE: Mapping[str, Any] = {"accelerator": "tpu-v5p", "topology": "2x2x1"}


# --- parts of a job ---------------------------------------------------------------------------------------------------
def template(
    container: str = "learner", *, command: Sequence[str] = ("python", "train.py"), env: Mapping[str, object] | None = None, **spec: Any
) -> Obj:
    """A pod template with one container; `spec` are further fields of the pod's spec."""
    made: Obj = {"name": container, "image": "registry.example/train:1", "command": list(command)}
    if env:
        made["env"] = [{"name": name, "value": str(value)} for name, value in env.items()]
    return {"spec": {"containers": [made], **spec}}


def tpu_pool(name: str = "v5p", accelerator: str = "tpu-v5p", topology: str = "2x2x2", **fields: Any) -> Obj:
    return _pool(name, {"accelerator": accelerator, "topology": topology, **fields})


def gpu_pool(name: str = "h100", accelerator: str = "nvidia-h100-80gb", **fields: Any) -> Obj:
    return _pool(name, {"accelerator": accelerator, **fields})


def cpu_pool(name: str = "cpu", **fields: Any) -> Obj:
    return _pool(name, {"accelerator": "cpu", **fields})


def _pool(name: str, fields: Obj) -> Obj:
    """`min` and `max` among `fields` are the pool's learners, 0 and 4 by default."""
    learners = {"min": fields.pop("min", 0), "max": fields.pop("max", 4)}
    return {"name": name, "learners": learners, "template": template(), **fields}


def with_field(obj: Obj, path: str, value: Any) -> Obj:
    """A copy with one field set: `with_field(a_manifest(), "spec.pools[0].name", "x")`; `...` removes the field."""
    result = copy.deepcopy(obj)
    *parents, last = [int(part) if part.isdecimal() else part for part in path.replace("[", ".").replace("]", "").split(".")]
    at: Any = result
    for part in parents:
        at = at[part] if isinstance(part, int) else at.setdefault(part, {})
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return result


# --- whole jobs -------------------------------------------------------------------------------------------------------
class JobBuilder:
    """A job with 1 to 8 learners, 100 steps and no pools, unless a method changes it. Not stored yet: no namespace, no uid."""

    def __init__(self, name: str = "bytes-lm") -> None:
        self._obj: Obj = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {"learners": {"min": 1, "max": 8}, "pools": [], "training": {"steps": 100}},
        }

    def with_metadata(self, **fields: Any) -> Self:
        self._obj["metadata"] |= fields
        return self

    def in_namespace(self, namespace: str) -> Self:
        return self.with_metadata(namespace=namespace)

    def with_learners(self, min: int, max: int, **fields: Any) -> Self:
        self._obj["spec"]["learners"] |= {"min": min, "max": max, **fields}
        return self

    def with_restarts(self, limit: int, initial: str = "0s", max: str = "5m", window: str = "1h") -> Self:
        self._obj["spec"]["learners"]["restart"] = {"limit": limit, "window": window, "backoff": {"initial": initial, "max": max}}
        return self

    def with_pools(self, *pools: Obj) -> Self:
        self._obj["spec"]["pools"] += pools
        return self

    def with_pool(self, name: str = "v5p", **fields: Any) -> Self:
        """Single-host v5p slices unless `accelerator` says otherwise."""
        return self.with_pools(_pool(name, fields if "accelerator" in fields else {**_HARDWARE, **fields}))

    def with_gpu_pool(self, name: str = "h100", *, hosts: int = 1, **fields: Any) -> Self:
        return self.with_pools(gpu_pool(name, hosts=hosts, acceleratorsPerHost=8, **fields))

    def with_training(self, **fields: Any) -> Self:
        self._obj["spec"]["training"] |= fields
        return self

    def with_spec(self, **fields: Any) -> Self:
        self._obj["spec"] |= fields
        return self

    def with_status(self, **fields: Any) -> Self:
        self._obj.setdefault("status", {}).update(fields)
        return self

    def build(self) -> Obj:
        return copy.deepcopy(self._obj)


def a_job(name: str = "bytes-lm") -> JobBuilder:
    """As the API server stores it. Small and quick: no back-off, a minute for each step of a start."""
    return (
        JobBuilder(name)
        .with_metadata(namespace="team", uid=JOB_UID, generation=1, creationTimestamp="2026-11-20T12:00:00Z")
        .with_learners(1, 8, timeouts={"schedule": "30s", "pull": "1m", "start": "1m", "join": "1m"}, stallTimeout="30s")
        .with_restarts(2)
        .with_training(fragments=4, syncInterval=4)
    )


def a_manifest(
    name: str = "bytes-lm",
    *,
    namespace: str = "",
    min: int = 2,
    max: int = 6,
    pools: Sequence[Obj] | None = None,
    spec: Obj | None = None,
    **training: Any,
) -> Obj:
    """As a user writes it, valid, on a TPU and a GPU pool; `training` are fields in camelCase on top of `steps: 2400`."""
    chosen = pools if pools is not None else (tpu_pool(), gpu_pool())
    builder = JobBuilder(name).with_learners(min, max).with_pools(*chosen).with_training(**{"steps": 2400, **training})
    if namespace:
        builder.in_namespace(namespace)
    return builder.with_spec(**(spec or {})).build()
