"""The `/dev/shm` of a training program, through which the processes of one host exchange data. A container has 64 MiB of its own. Pure.

It is a volume in memory. What is written to it counts as memory of the container, so the container's memory grows by the volume's size.

See docs/decisions/0099-pod-security-and-templates.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from diloco_operator.accelerators import CATALOGUE, Family
from diloco_operator.api import names
from diloco_operator.api.spec import Pool
from diloco_operator.kube.quantities import quantity
from diloco_operator.reconcile.observe.template import container_named

PATH = "/dev/shm"  # noqa: S108 - a path in the container, where a volume is mounted
_PER_ACCELERATOR = 1 << 30
"""Bytes. NCCL asks for 1 GiB of a container: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html."""


def shared_memory(pool: Pool) -> int:
    """Bytes of the volume that the operator adds to the pool's pods. 0 if the pool needs none, or its template has its own."""
    template = pool.template.spec
    container = container_named(template, names.LEARNER_CONTAINER)
    if container is None or template.get("hostIPC") is True or _mounts_its_own(container):
        return 0
    if pool.shared_memory is not None:
        return int(quantity(pool.shared_memory))
    if CATALOGUE[pool.accelerator].family is not Family.HOST:
        return 0
    return pool.shape.accelerators_per_host * _PER_ACCELERATOR


def counted(pool: Pool) -> Mapping[str, Any]:
    """The pool's template, with the larger memory that its pods get."""
    template, more = pool.template.spec, shared_memory(pool)
    if not more:
        return template
    main = container_named(template, names.LEARNER_CONTAINER)
    containers = [_with_memory(main, more) if main is not None and container is main else container for container in template["containers"]]
    return {**_with_memory(template, more), "containers": containers}


def _mounts_its_own(container: Mapping[str, Any]) -> bool:
    mounts = container.get("volumeMounts")
    paths = (each.get("mountPath") for each in (mounts if isinstance(mounts, list) else ()) if isinstance(each, dict))
    return any(isinstance(path, str) and path.rstrip("/") == PATH for path in paths)


def _with_memory(owner: Mapping[str, Any], more: int) -> Mapping[str, Any]:
    """Add `more` bytes to the memory that a container or pod sets. A malformed amount stays as it is."""
    resources = owner.get("resources")
    if not isinstance(resources, dict):
        return owner
    larger = dict(resources)
    for kind in ("requests", "limits"):
        amounts = larger.get(kind)
        if isinstance(amounts, dict) and "memory" in amounts:
            with contextlib.suppress(ValueError):
                larger[kind] = {**amounts, "memory": _text(quantity(amounts["memory"]) + more)}
    return {**owner, "resources": larger}


def size_text(size: int) -> str:
    return _text(Fraction(size))


def _text(size: Fraction) -> str:
    for unit, width in (("Gi", 30), ("Mi", 20)):
        if size % (1 << width) == 0:
            return f"{int(size) >> width}{unit}"
    return str(-(-size.numerator // size.denominator))
