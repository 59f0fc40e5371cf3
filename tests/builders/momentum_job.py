"""A syncer and learners with momentum, over real connections, until the test has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from builders.exchange import LocalSyncer, Place, until
from builders.momentum_learner import MomentumLearner
from builders.ports import held_port
from diloco.protocol.diloco_pb2 import Recovery


class MomentumJob:
    """Learners that train until `end`; tests kill some of them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.port = held_port()
        self.syncer = LocalSyncer(self.place, port=self.port)
        self.learners: list[MomentumLearner] = []

    @contextmanager
    def running(self) -> Iterator[Self]:
        """The syncer serves; all ends orderly if the test has passed."""
        with self.syncer:
            yield self
            self.end()

    def begin_again(self) -> None:
        """Start another syncer at the same address, on the same volume."""
        self.syncer = LocalSyncer(self.place, port=self.port)
        self.syncer.__enter__()

    def recovery(self, name: str, phase: Recovery.Phase = Recovery.OVER) -> Recovery:
        """What the syncer says of the unit's recovery, once it is in this phase."""

        def found() -> Recovery | None:
            unit = self.syncer.unit(name)
            return unit.recovery if unit is not None and unit.recovery.phase == phase else None

        said: Recovery = until(found, f"unit {name} says {Recovery.Phase.Name(phase)}")
        return said

    def end(self) -> None:
        for learner in self.learners:
            learner.drain()
        with ExitStack() as stack:
            stack.callback(self.syncer.stop)  # the last one
            for learner in self.learners:
                stack.callback(learner.wait)


def begins(learner: MomentumLearner) -> MomentumLearner:
    """Wait until it trains. Raises what ended it before."""
    until(lambda: learner.session is not None or learner.failure, f"unit {learner.unit} begins")
    if learner.failure is not None:
        raise learner.failure
    return learner
