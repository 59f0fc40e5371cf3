"""Since when each unit of a job has had its slices. Only in memory: for a new operator all of them are old.

The age of pods does not count: a tenant who deletes the pods of a unit again and again would keep its slice from others.

See docs/decisions/0206-before-units-leave.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from diloco_operator.placement import JobRequest


class _Grant(NamedTuple):
    nodes: tuple[str, ...]
    since: float


class SlicesSince:
    """Since when the units of one job have their slices."""

    def __init__(self) -> None:
        self._grants: dict[str, _Grant] = {}

    def by_unit(self) -> Mapping[str, float]:
        """Since when each unit has had its slices, in seconds since the epoch."""
        return {unit: grant.since for unit, grant in self._grants.items()}

    def note(self, request: JobRequest, reserved: frozenset[str], now: float) -> None:
        """Note what the job has and wants after a decision, and the nodes that it has reserved. A unit that ends and comes back to nodes
        that stayed reserved meanwhile has had them all the time."""
        grants = {unit: grant for unit, grant in self._grants.items() if reserved.issuperset(grant.nodes)}
        for unit in (unit for pool in request.pools for unit in pool.units):
            if unit.name not in grants or grants[unit.name].nodes != unit.nodes:
                grants[unit.name] = _Grant(unit.nodes, now)
        self._grants = grants
