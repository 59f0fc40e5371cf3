"""What a rule sees when it decides, and what it answers. Both are counts, since slices of a kind are alike. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.trace.inputs import TraceJob

type Taken = dict[tuple[str, str], int]
"""(job, kind) -> units."""


@dataclass(frozen=True, slots=True)
class Present:
    """A job that has come and is not complete."""

    job: TraceJob
    held: Mapping[str, int] = field(default_factory=dict)
    """Kind -> units."""
    settling: Mapping[str, int] = field(default_factory=dict)
    """Kind -> units among `held` that are still starting. No rule makes these leave."""
    admitted: bool = False
    """The job has had its minimum once."""
    measured: frozenset[str] = frozenset()
    """Kinds on which a unit of the job has trained."""

    @property
    def units(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True, slots=True)
class Scene:
    """All available slices, and all jobs."""

    free: Mapping[str, int]
    """Kind -> slices."""
    jobs: tuple[Present, ...]
    """The oldest first."""

    @property
    def rooms(self) -> dict[str, int]:
        """Kind -> all available slices, free or with a unit."""
        by_kind = dict(self.free)
        for present in self.jobs:
            for kind, units in present.held.items():
                by_kind[kind] = by_kind.get(kind, 0) + units
        return by_kind


@dataclass(frozen=True, slots=True)
class Orders:
    """The answer of a rule. First units leave, then units start."""

    leave: Taken = field(default_factory=dict)
    take: Taken = field(default_factory=dict)
