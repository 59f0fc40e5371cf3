"""Other pods, which use resources of nodes beside what jobs have reserved. Pure.

See docs/decisions/0130-what-occupies-a-node.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.wording import and_more

from diloco_operator.fleet.node import NodeView
from diloco_operator.fleet.resources import Resources, amount_of, lack, left

type UnitKey = tuple[str, str]
"""Job and unit."""


@dataclass(frozen=True, slots=True, eq=False)
class PodUse:
    """One pod that is bound to a node and has not ended. Each object is equal only to itself."""

    namespace: str
    name: str
    node: str
    requests: Resources
    learner: tuple[float, str] | None = None
    """For a learner pod of another operator's job: its creation, in seconds since the epoch, and its uid. None for any other pod, and for
    one that requests nothing."""
    unit: UnitKey | None = None
    """For a learner pod of this operator: its job and unit. It counts only if these have not reserved the node. For a claim of a job, which
    outlasts its pod for a moment, the unit is ""."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def shortage(node: NodeView, uses: Sequence[PodUse], needs: Resources) -> str:
    """Return what the node lacks for a pod: `needs 64 CPU, node n1 has 12 CPU left: team-a/web-0 and 3 more use the rest`. It names the pod
    that uses most. "" if the node has room."""
    lacks = lack(needs, left(node.allocatable, (use.requests for use in uses)))
    if lacks is None:
        return ""
    start = f"needs {lacks.wanted}, node {node.name} has {lacks.has}"
    takers = [use for use in uses if amount_of(use.requests, lacks.resource)]
    if not takers:
        return start
    most = min(takers, key=lambda use: (-amount_of(use.requests, lacks.resource), str(use)))
    return f"{start} left: {and_more([str(most)], len(takers))} {'uses' if len(takers) == 1 else 'use'} the rest"


def excludes_units(use: PodUse, resource: str) -> bool:
    """Whether no unit may run beside this pod: it requests accelerators of the host, or if the host has none, it is a learner of another
    operator. `resource` is that of the accelerators, or "" if the host has none."""
    return amount_of(use.requests, resource) > 0 if resource else use.learner is not None
