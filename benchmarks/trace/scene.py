"""What a rule sees when it decides, and what it answers, in counts. Slices of a kind are alike. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.trace.inputs import TraceJob

type Taken = dict[tuple[str, str], int]
"""Job and kind -> units."""


@dataclass(frozen=True, slots=True)
class Present:
    """A job that has come and is not complete."""

    job: TraceJob
    held: Mapping[str, int] = field(default_factory=dict)
    """Kind -> units."""
    settling: Mapping[str, int] = field(default_factory=dict)
    """Those among them that start: no rule has them leave."""
    admitted: bool = False
    """It has had its minimum."""
    measured: frozenset[str] = frozenset()
    """Kinds on which a unit of it has trained."""

    @property
    def units(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Scene:
    """All slices that are there, and all jobs."""

    free: Mapping[str, int]
    """Kind -> slices."""
    jobs: tuple[Present, ...]
    """The oldest first."""

    @property
    def rooms(self) -> dict[str, int]:
        """Kind -> slices that are free, or that units have."""
        found = dict(self.free)
        for present in self.jobs:
            for kind, units in present.held.items():
                found[kind] = found.get(kind, 0) + units
        return found


@dataclass(frozen=True, slots=True)
class Orders:
    """First units leave, then units start."""

    leave: Taken = field(default_factory=dict)
    take: Taken = field(default_factory=dict)
