"""Which versions of the fragments a unit has adopted, in one incarnation of the syncer. Pure.

Outer steps of two incarnations do not compare: one that starts from an older snapshot counts some of them again.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from diloco.learner.inbox import InboxEvent, Received, Welcomed
from diloco.learner.unit_plan import UnitPlan


class Held:
    """Told of every boundary, in order."""

    def __init__(self, fragments: int) -> None:
        self.epoch = -1
        """The epoch of the syncer (`Incarnations`); -1: it was not met yet."""
        self.versions = [-1] * fragments
        """Per fragment what was adopted in this epoch; -1: nothing yet."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """Per fragment (epoch, version) that came last."""

    def boundary(self, events: Sequence[InboxEvent], plan: UnitPlan) -> bool:
        """Note what came before this boundary, and what is done at it. True: another incarnation began."""
        before = self.epoch
        for event in events:
            match event:
                case Welcomed(epoch=epoch) if epoch != self.epoch:
                    self.epoch = epoch
                    self.versions = [-1] * len(self.versions)
                case Received(fragment=fragment, t=t, epoch=epoch):
                    self._arrived[fragment] = epoch, t
        for adoption in plan.adoptions:
            if self._arrived.get(adoption.fragment) == (self.epoch, adoption.version):
                self.versions[adoption.fragment] = adoption.version
        if plan.seed:
            self.versions = [0] * len(self.versions)
        return self.epoch != before

    def reach(self, wanted: Sequence[int]) -> bool:
        """Whether every fragment is as new as wanted."""
        return all(own >= version for own, version in zip(self.versions, wanted, strict=True))
