"""What the allotment gives one job, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diloco_operator.fleet.slices import Slice


@dataclass(frozen=True, slots=True)
class Allotted:
    """What one job gets and gives."""

    granted: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    """Pool, by its name -> free slices that only its units may take now."""
    revoked: Mapping[str, str] = field(default_factory=dict)
    """Units that must leave their slices -> the key of the job that gets these."""
    checks: frozenset[str] = frozenset()
    """Names of its pools for which units of other jobs would leave, once a dry run of their pods is admitted."""
    prepares: bool = False
    """Units of other jobs would leave for it, or slices are kept for its minimum, and what its units share is not there."""
    kept_for_minimum: frozenset[str] = frozenset()
    """Keys of free slices that no other minimum gets, because all of its minimum does not fit yet."""

    @property
    def nodes(self) -> frozenset[str]:
        """The keys of the granted slices: their first nodes, and of parts of hosts their names."""
        return frozenset(slice_.key for slices in self.granted.values() for slice_ in slices)

    def adds_to(self, before: Allotted) -> bool:
        """Return whether the job can act on something that was not so before."""
        more = self.nodes - before.nodes or self.revoked.keys() - before.revoked.keys() or self.checks - before.checks
        return bool(more) or self.prepares > before.prepares

    @property
    def kept(self) -> frozenset[str]:
        """The keys of all free slices that are kept for it."""
        return self.nodes | self.kept_for_minimum


NOTHING_ALLOTTED = Allotted()
