"""The marks that grantors of nodes and quota leave on pods, as reconcile reads them. Pure.

Only the grantors (`reconcile.grantors`) know which labels, annotations and conditions these are.

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from diloco_operator.kube.fields import Fields


class PodGroup(NamedTuple):
    """The pod group of a pod. Its grantor counts the group as one."""

    name: str
    queue: str
    held: bool
    """The grantor counts the pod's use, or keeps its place for a successor."""
    released: bool
    """The group is over, and gives its quota back, once all of its pods have ended."""


class PodMarks(NamedTuple):
    """How the marks are read."""

    grantors: Collection[str]
    """Names of all grantors."""
    group: Callable[[Fields, Fields, Fields], PodGroup | None]
    """Reads the group from a pod's metadata, labels and annotations. Raises `MalformedField`."""
    evictions: Collection[str]
    """Types of the conditions with which grantors take pods away, besides Kubernetes' own."""
