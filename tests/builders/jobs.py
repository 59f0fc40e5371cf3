"""DiLoCoJobs for tests of the control plane, as raw API objects: `a_job().with_pool("v5p", ...)`."""

from __future__ import annotations

import copy
from typing import Any, Self

JOB_UID = "job-uid-1"


def template(container: str = "learner", **spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{"name": container, "image": "trainer:1", "command": ["python", "train.py"]}], **spec}}


class JobBuilder:
    """Defaults are small and quick: no back-off, a minute to join."""

    def __init__(self, name: str = "bytes-lm") -> None:
        self._obj: dict[str, Any] = {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": JOB_UID,
                "generation": 1,
                "creationTimestamp": "2026-11-20T12:00:00Z",
            },
            "spec": {
                "learners": {
                    "min": 1,
                    "max": 8,
                    "restart": {"limit": 2, "window": "1h", "backoff": {"initial": "0s", "max": "5m"}},
                    "joinTimeout": "1m",
                    "stallTimeout": "30s",
                },
                "pools": [],
                "training": {"steps": 100, "fragments": 4, "syncInterval": 4},
            },
        }

    def with_learners(self, min: int, max: int) -> Self:
        self._obj["spec"]["learners"] |= {"min": min, "max": max}
        return self

    def with_restarts(self, limit: int, initial: str = "0s", max: str = "5m", window: str = "1h") -> Self:
        self._obj["spec"]["learners"]["restart"] = {"limit": limit, "window": window, "backoff": {"initial": initial, "max": max}}
        return self

    def with_pool(self, name: str = "v5p", *, min: int = 0, max: int = 4, **fields: Any) -> Self:
        """Single-host v5p slices unless told otherwise."""
        hardware = fields if "accelerator" in fields else {"accelerator": "tpu-v5p", "topology": "2x2x1", **fields}
        pool = {"name": name, "learners": {"min": min, "max": max}, "template": template(), **hardware}
        self._obj["spec"]["pools"].append(pool)
        return self

    def with_gpu_pool(self, name: str = "h100", *, hosts: int = 1, **fields: Any) -> Self:
        return self.with_pool(name, accelerator="nvidia-h100-80gb", hosts=hosts, acceleratorsPerHost=8, **fields)

    def with_training(self, **fields: Any) -> Self:
        self._obj["spec"]["training"] |= fields
        return self

    def with_spec(self, **fields: Any) -> Self:
        self._obj["spec"] |= fields
        return self

    def with_status(self, **fields: Any) -> Self:
        self._obj.setdefault("status", {}).update(fields)
        return self

    def build(self) -> dict[str, Any]:
        return copy.deepcopy(self._obj)


def a_job(name: str = "bytes-lm") -> JobBuilder:
    return JobBuilder(name)
