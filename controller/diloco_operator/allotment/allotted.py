"""What the allotment gives to one job, and what it takes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diloco_operator.fleet.slices import Slice


@dataclass(frozen=True, slots=True)
class Allotted:
    granted: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    """Name of a pool -> free slices that only its units may take now."""
    revoked: Mapping[str, str] = field(default_factory=dict)
    """Unit that must leave its slices -> the key of the job that waits for them, or of its own job if none does."""
    checks: frozenset[str] = frozenset()
    """Names of its pools that should ask by a dry run whether their pods are admitted: then units of other jobs would leave for them."""
    prepares: bool = False
    """The job should create what its units share: units of other jobs would then leave for it, or slices be kept for its minimum."""
    kept_for_minimum: frozenset[str] = frozenset()
    """Keys of free slices that wait for its minimum, which does not fit yet as a whole. No other minimum gets them."""

    @property
    def nodes(self) -> frozenset[str]:
        """The keys of the granted slices: the first node of each, with the name of the part if it is part of a host."""
        return frozenset(slice_.key for slices in self.granted.values() for slice_ in slices)

    def adds_to(self, before: Allotted) -> bool:
        """Whether the job can act on something that it could not act on before."""
        more = self.nodes - before.nodes or self.revoked.keys() - before.revoked.keys() or self.checks - before.checks
        return bool(more) or self.prepares > before.prepares

    @property
    def kept(self) -> frozenset[str]:
        """The keys of all free slices that are kept for the job."""
        return self.nodes | self.kept_for_minimum


NOTHING_ALLOTTED = Allotted()
