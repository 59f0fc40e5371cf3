"""Which versions of the fragments a unit has adopted, in one incarnation of the syncer. Pure.

Outer steps of two incarnations cannot be compared: a syncer that starts from an older snapshot counts some of them again.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from diloco.learner.inbox import InboxEvent, Received, Welcomed
from diloco.learner.unit_plan import UnitPlan


class AdoptedVersions:
    """The training thread calls `boundary` at every step boundary, in order."""

    def __init__(self, fragments: int) -> None:
        self.epoch = -1
        """The number of the syncer's incarnation (see `Incarnations`). -1 if the process has not met the syncer."""
        self.versions = [-1] * fragments
        """For each fragment the version that was adopted in this epoch and generation. -1 if none was."""
        self._generation = 0
        """As in `Welcomed`."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """For each fragment the (epoch, version) that came last."""

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan) -> bool:
        """Note what came before this boundary, and what is done at it. True if another incarnation has begun."""
        before = self.epoch
        for event in events:
            match event:
                # A session that does not go on gets all parameters anew. Within one incarnation too: of a syncer whose volume was restored
                # from a backup, what was adopted before has other values than the versions of these numbers have now.
                case Welcomed(generation=generation, epoch=epoch) if (generation, epoch) != (self._generation, self.epoch):
                    self._generation, self.epoch = generation, epoch
                    self.versions = [-1] * len(self.versions)
                    self._arrived.clear()
                case Received(fragment=fragment, t=t, epoch=epoch):
                    self._arrived[fragment] = epoch, t
        for adoption in plan.adoptions:
            if self._arrived.get(adoption.fragment) == (self.epoch, adoption.version):
                self.versions[adoption.fragment] = adoption.version
        if plan.seed:
            self.versions = [0] * len(self.versions)
        return self.epoch != before

    def are_as_new_as(self, wanted: Sequence[int]) -> bool:
        """Whether every fragment is as new as wanted."""
        return all(own >= version for own, version in zip(self.versions, wanted, strict=True))
