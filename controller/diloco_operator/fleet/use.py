"""Pods that use resources of nodes beside what jobs have reserved. Pure.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.resources import Resources, amount_of, lack, left

type UnitKey = tuple[str, str]
"""Job and unit."""


@dataclass(frozen=True, slots=True, eq=False)
class PodUse:
    """One pod that is bound to a node and has not ended. It stands for itself: equal only to itself."""

    namespace: str
    name: str
    node: str
    requests: Resources
    learner: tuple[float, str] | None = None
    """For a learner pod of another operator's job: its creation, seconds since the epoch, and its uid. None: it is another pod, or requests
    nothing."""
    unit: UnitKey | None = None
    """For a learner pod of this operator: its job and unit. It counts only where these have not reserved the node. What it claims names
    the job alone (unit ""): the claim outlasts the pod for a moment."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def first_and_more(first: str, count: int) -> str:
    """Return `team-a/train-0 and 3 more`."""
    return first if count <= 1 else f"{first} and {count - 1} more"


def shortage(node: NodeView, uses: Sequence[PodUse], needs: Resources) -> str:
    """Return what a pod that needs this lacks on the node: `needs 64 CPU, node n1 has 12 CPU left: team-a/web-0 and 3 more use the rest`;
    "" if there is room. The pod that uses most is named."""
    lacks = lack(needs, left(node.allocatable, (use.requests for use in uses)))
    if lacks is None:
        return ""
    start = f"needs {lacks.wanted}, node {node.name} has {lacks.has}"
    takers = [use for use in uses if amount_of(use.requests, lacks.resource)]
    if not takers:
        return start
    most = min(takers, key=lambda use: (-amount_of(use.requests, lacks.resource), str(use)))
    return f"{start} left: {first_and_more(str(most), len(takers))} {'uses' if len(takers) == 1 else 'use'} the rest"


def excludes_units(use: PodUse, resource: str) -> bool:
    """Return whether no unit may run beside this pod: it requests accelerators (`resource`) of the host; on a host without any ("") it is a
    learner of another operator."""
    return amount_of(use.requests, resource) > 0 if resource else use.learner is not None
