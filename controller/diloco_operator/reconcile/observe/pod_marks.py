"""What the grantors of nodes and quota leave on pods, in the form in which reconcile reads it. Pure.

Which labels, annotations and conditions these are is known to the grantors alone (`reconcile.grantors`).

See docs/decisions/0171-delegated-units.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from diloco_operator.kube.fields import Fields


class PodGroup(NamedTuple):
    """The pod group of a pod, which its grantor counts as one."""

    name: str
    queue: str
    held: bool
    """The grantor counts the pod: for what it uses, or until its successor takes its place."""
    released: bool
    """The group is over, and gives its quota back, once all of its pods have ended."""


class PodMarks(NamedTuple):
    """How the marks are read."""

    grantors: Collection[str]
    """Names of the grantors that there are."""
    group: Callable[[Fields, Fields, Fields], PodGroup | None]
    """From metadata, labels and annotations of a pod. Raises `MalformedField`."""
    evictions: Collection[str]
    """Types of the conditions by which grantors take pods away, beside Kubernetes' own."""
