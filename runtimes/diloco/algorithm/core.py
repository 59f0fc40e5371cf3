"""The driver of a syncer, with the model's layout and with the shard that holds every fragment.

See docs/decisions/0148-driver-and-threads.md.
"""

from __future__ import annotations

import math
from collections.abc import Buffer, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco import contract
from diloco.algorithm import codec
from diloco.algorithm.coordinator import Coordinator, refuse
from diloco.algorithm.driver import Driver
from diloco.algorithm.effects import Close, Effect, Reason, Refusal
from diloco.algorithm.events import Computed, Offer, Usable
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.guards import Guard
from diloco.algorithm.layout import Layout, LayoutError
from diloco.algorithm.pieces import Portion
from diloco.algorithm.shard import CheckedPush, Shard, Update
from diloco.algorithm.state import ContributionStats, CoreState, StateError
from diloco.wording import plural

Array = NDArray[np.float32]


class Core(Driver):
    """A driver whose caller does the arithmetic: it calls `decode` and `compute` in any thread, then `use` and `computed`, which give the
    result to the shard and its event to the driver. Not thread-safe, except where said."""

    def __init__(self, layout: Layout, training: contract.Training, state: CoreState | None = None) -> None:
        """Continue from `state`; if it is None the job has not begun.

        Raises LayoutError for too few tensors and if the state has another layout, StateError if the state has another number of fragments
        or malformed levels of the guards, ValueError if training.overlapSteps is not less than syncInterval.
        """
        self.layout = layout
        self.training = training
        self.fragments = make_fragments(layout, training.fragments)
        self.shard = Shard(self.fragments, training)
        if state is None:
            self.guard = Guard([fragment.size for fragment in self.fragments])
            coordinator = Coordinator(training, self.guard)
        else:
            self._check(state)
            self.guard = state.restored_guard()
            coordinator = Coordinator(training, self.guard, state.t, state.versions, state.contributions)
            self.shard.restore(state.versions, state.values, state.momentum, state.residual)
            self.guard.begin(self.shard.value_norms())
        super().__init__(coordinator, self.shard)
        self.coding = coordinator.coding

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def seeded(self) -> bool:
        """Whether the job has parameters."""
        return self.coordinator.begun

    @property
    def t(self) -> int:
        """Outer steps taken."""
        return self.coordinator.t

    @property
    def done(self) -> bool:
        """Step T is reached and every exchange is merged."""
        return self.coordinator.done

    @property
    def units(self) -> tuple[str, ...]:
        """Joined units, sorted."""
        return self.coordinator.units

    @property
    def step_seconds(self) -> float:
        """Duration of the mean learner step, in seconds; 0 if unknown."""
        return self.coordinator.step_seconds

    @property
    def outer_step_seconds(self) -> float:
        """As `Coordinator.outer_step_seconds`."""
        return self.coordinator.outer_step_seconds

    def version(self, p: int) -> int:
        """The outer step of the last merge of fragment p; 0 after the seed."""
        return self.shard.versions[p]

    def value(self, p: int) -> Array:
        """As `Shard.value`."""
        return self.shard.value(p)

    def contributions_of(self, unit: str) -> ContributionStats:
        """What the unit has contributed, over all its attempts."""
        return self.coordinator.contributions_of(unit)

    def staleness(self, unit: str) -> int:
        """As `Coordinator.staleness`."""
        return self.coordinator.staleness(unit)

    def steps_per_sync(self, unit: str) -> int:
        """As `Coordinator.steps_per_sync`."""
        return self.coordinator.steps_per_sync(unit)

    def merge_share(self, unit: str) -> float:
        """As `Coordinator.merge_share`."""
        return self.coordinator.merge_share(unit)

    def state(self) -> CoreState:
        """What a snapshot must hold. It costs nothing: the arrays are shared and never written to. Raises ValueError before the seed."""
        shard = self.shard
        return CoreState(
            self.layout,
            self.t,
            shard.versions,
            shard.values,
            shard.momentum,
            shard.residual,
            self.coordinator.contributions,
            self.guard.to_json(),
        )

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def seed(self, values: Sequence[Array]) -> tuple[float, ...] | Refusal:
        """Give the shard the job's first parameters, see `Shard.seed`. Returns their norms, for the `Seeded` event that must follow. Any
        thread may call this."""
        refusal = self.shard.seed(values)
        return refusal if refusal is not None else tuple(self.shard.value_norms())

    def decode(self, unit: str, offer: Offer, payload: Buffer) -> CheckedPush | Refusal:
        """Return what can be merged of an admitted answer, or why it cannot be used. The result refers to the payload until its merge.
        Changes nothing, so any thread may call it."""
        return self._decoded(unit, offer, lambda: self.shard.decode(offer, payload))

    def decode_portions(self, unit: str, offer: Offer, parts: Sequence[tuple[Portion, Buffer]]) -> CheckedPush | Refusal:
        """As `decode`, for an answer that comes in the portions of several ranks, see `Shard.decode_portions`."""
        return self._decoded(unit, offer, lambda: self.shard.decode_portions(offer, parts))

    def use(self, unit: str, offer: Offer, decoded: CheckedPush, at: float, countable_tokens: float = math.inf) -> list[Effect]:
        """Give a decoded answer to the shard, and `Usable` to the driver."""
        self.shard.hold(unit, offer, decoded)
        return self.take(Usable(at, unit, offer, decoded.norm, countable_tokens))

    def compute(self, close: Close) -> Update | None:
        """As `Shard.compute`. Any thread may call it."""
        return self.shard.compute(close)

    def computed(self, close: Close, update: Update | None, at: float) -> list[Effect]:
        """Give the result of `compute` to the shard, and `Computed` to the driver."""
        self.shard.hold_update(close, update)
        return self.take(Computed(at, close.t, update is not None))

    def _decoded(self, unit: str, offer: Offer, decode: Callable[[], CheckedPush]) -> CheckedPush | Refusal:
        try:
            return decode()
        except codec.NonFiniteError as e:
            return refuse(Reason.NON_FINITE, unit, offer, str(e))
        except codec.CodecError as e:
            return refuse(Reason.BAD_SIZE, unit, offer, str(e))

    def _check(self, state: CoreState) -> None:
        if difference := self.layout.difference(state.layout):
            raise LayoutError("the model is not the one in the stored state: " + "; ".join(difference))
        if len(state.versions) != len(self.fragments):
            raise StateError(
                f"the stored state is cut into {plural(len(state.versions), 'fragment')}, the job into {len(self.fragments)}: "
                "training.fragments cannot change"
            )
