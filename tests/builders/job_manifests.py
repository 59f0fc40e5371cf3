"""DiLoCoJobs as a user writes them: `job(pools=[tpu_pool(), gpu_pool(hosts=2)], quorum=2)`."""

from __future__ import annotations

import copy
from typing import Any

from diloco_operator.api.names import API_VERSION, KIND

type Obj = dict[str, Any]


def pod_template(container: str = "learner") -> Obj:
    return {"spec": {"containers": [{"name": container, "image": "registry.example/train:1", "command": ["python", "train.py"]}]}}


def tpu_pool(
    name: str = "v5p", accelerator: str = "tpu-v5p", topology: str = "2x2x2", *, least: int = 0, most: int = 4, **fields: Any
) -> Obj:
    return {"name": name, "accelerator": accelerator, "topology": topology, **_rest(least, most, fields)}


def gpu_pool(name: str = "h100", accelerator: str = "nvidia-h100-80gb", *, least: int = 0, most: int = 4, **fields: Any) -> Obj:
    return {"name": name, "accelerator": accelerator, **_rest(least, most, fields)}


def cpu_pool(name: str = "cpu", *, least: int = 0, most: int = 4, **fields: Any) -> Obj:
    return {"name": name, "accelerator": "cpu", **_rest(least, most, fields)}


def job(
    name: str = "bytes-lm", *, least: int = 2, most: int = 6, pools: list[Obj] | None = None, spec: Obj | None = None, **training: Any
) -> Obj:
    """A valid job, `training` fields in camelCase on top of `steps: 2400`."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "learners": {"min": least, "max": most},
            "pools": pools if pools is not None else [tpu_pool(), gpu_pool()],
            "training": {"steps": 2400, **training},
            **(spec or {}),
        },
    }


def with_field(obj: Obj, path: str, value: Any) -> Obj:
    """A copy with one field set: `with_field(job(), "spec.pools[0].name", "x")`; `...` removes it."""
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


def _rest(least: int, most: int, fields: Obj) -> Obj:
    return {"learners": {"min": least, "max": most}, "template": pod_template(), **fields}
