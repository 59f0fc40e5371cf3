"""The coordinator and one shard with every fragment, joined in one process.

See docs/decisions/0148-coordinator-and-shard.md.
"""

from __future__ import annotations

import math
from collections.abc import Buffer, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diloco import contract
from diloco.algorithm import codec
from diloco.algorithm.coordinator import Coordinator, refuse
from diloco.algorithm.events import Action, Broadcast, Close, Distrusted, Merged, Metadata, Offer, Push, Reason, Refusal, Skipped
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.guards import Guard
from diloco.algorithm.layout import Layout, LayoutError
from diloco.algorithm.pieces import Portion
from diloco.algorithm.shard import Decoded, Shard, Update
from diloco.algorithm.state import ContributionStats, CoreState, StateError
from diloco.wording import plural

Array = NDArray[np.float32]


class Core:
    """Every decision of the syncer, and every change of the parameters. Pure: `now` is in seconds on one monotonic clock, the same in every
    call. Not thread-safe, except where said."""

    def __init__(self, layout: Layout, training: contract.Training, state: CoreState | None = None) -> None:
        """Continue from `state`; without one the job has not begun.

        Raises LayoutError for too few tensors or another layout than the state's, StateError for another number of fragments than the
        state's or malformed levels of the guards, ValueError if training.overlapSteps is not less than syncInterval.
        """
        self.layout = layout
        self.training = training
        self.fragments = make_fragments(layout, training.fragments)
        self.shard = Shard(self.fragments, training)
        self.guard = Guard([fragment.size for fragment in self.fragments])
        if state is None:
            self.coordinator = Coordinator(training, self.guard)
        else:
            self._check(state)
            self.coordinator = Coordinator(training, self.guard, state.t, state.versions, state.contributions)
            self.shard.restore(state.versions, state.values, state.momentum, state.residual)
            try:
                self.guard.restore(state.guard)
            except (KeyError, TypeError, ValueError) as e:
                raise StateError(f"the stored levels of the guards are malformed: {type(e).__name__}: {e}") from e
            self.guard.begin(self.shard.value_norms())
        self.coding = self.coordinator.coding

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
        """Duration of the mean learner step, seconds; 0 if it is unknown."""
        return self.coordinator.step_seconds

    @property
    def outer_step_seconds(self) -> float:
        """As `Coordinator.outer_step_seconds`."""
        return self.coordinator.outer_step_seconds

    def version(self, p: int) -> int:
        """Outer step of the last merge of fragment p; 0 after the seed."""
        return self.shard.versions[p]

    def value(self, p: int) -> Array:
        """As `Shard.value`."""
        return self.shard.value(p)

    def contributions_of(self, unit: str) -> ContributionStats:
        """What the unit has contributed, over all its attempts."""
        return self.coordinator.contributions_of(unit)

    def staleness(self, unit: str) -> int:
        """Outer steps since the unit's last contribution; without one, since it joined."""
        return self.coordinator.staleness(unit)

    def steps_per_sync(self, unit: str) -> int:
        """As `Coordinator.steps_per_sync`."""
        return self.coordinator.steps_per_sync(unit)

    def state(self) -> CoreState:
        """What a snapshot must hold. Costs nothing: the arrays are shared and never written to. Raises ValueError before the seed."""
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

    # --- events -------------------------------------------------------------------------------------------------------

    def seed(self, values: Sequence[Array]) -> Refusal | None:
        """Take the job's first parameters, see `Shard.seed`."""
        refusal = self.shard.seed(values)
        if refusal is None:
            self.guard.begin(self.shard.value_norms())
            self.coordinator.begin()
        return refusal

    def end(self, t: int) -> None:
        """As `Coordinator.end`."""
        self.coordinator.end(t)

    def join(self, unit: str, now: float) -> None:
        """As `Coordinator.join`."""
        self.coordinator.join(unit, now)

    def leave(self, unit: str, now: float) -> None:
        """As `Coordinator.leave`."""
        self.coordinator.leave(unit, now)

    def progress(self, unit: str, metadata: Metadata, now: float) -> None:
        """As `Coordinator.progress`."""
        self.coordinator.progress(unit, metadata, now)

    def push(self, unit: str, push: Push, now: float) -> Refusal | None:
        """Take a learner's answer to a pull, from `admit` to `contributed`. None: accepted; the merge will contain it."""
        offer = push.offer
        refusal = self.coordinator.admit(unit, offer, now)
        if refusal is not None:
            return refusal
        decoded = self.decode(unit, push)
        if isinstance(decoded, Refusal):
            self.coordinator.rejected(unit, offer, now)
            return decoded
        return self.contributed(unit, offer, decoded, now)

    def decode(self, unit: str, push: Push) -> Decoded | Refusal:
        """The outer gradient of an admitted answer, or why it cannot be used. In any thread: changes nothing."""
        return self._decoded(unit, push.offer, lambda: self.shard.decode(push.offer, push.payload))

    def decode_portions(self, unit: str, offer: Offer, parts: Sequence[tuple[Portion, Buffer]]) -> Decoded | Refusal:
        """As `decode`, of an answer that comes in the portions of several ranks, see `Shard.decode_portions`."""
        return self._decoded(unit, offer, lambda: self.shard.decode_portions(offer, parts))

    def contributed(self, unit: str, offer: Offer, decoded: Decoded, now: float, countable_tokens: float = math.inf) -> Refusal | None:
        """As `Coordinator.contributed`; the shard keeps the outer gradient."""
        refusal = self.coordinator.contributed(unit, offer, decoded.norm, now, countable_tokens)
        if refusal is None:
            self.shard.accept(unit, offer, decoded)
        return refusal

    # --- decisions ----------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Action]:
        """The actions that are due now, in order; merges are done. Call it after every event and at `wake_at`. Idempotent."""
        actions: list[Action] = []
        while orders := self.coordinator.advance(now):
            for order in orders:
                if isinstance(order, Close):
                    actions += self._merge(order, now)
                    continue
                if isinstance(order, Distrusted):
                    self.discard(order)
                actions.append(order)
        return actions

    def wake_at(self, now: float) -> float | None:
        """As `Coordinator.wake_at`."""
        return self.coordinator.wake_at(now)

    def discard(self, order: Distrusted) -> None:
        """The shard forgets the contributions that are not to be merged."""
        for t in (order.t, *order.withdrawn):
            self.shard.discard(t, order.unit)

    def installed(self, close: Close, update: Update | None, now: float) -> Merged | Skipped:
        """Put the result of `Shard.compute` in place, in shard and coordinator at once."""
        self.shard.install(close, update)
        return self.coordinator.applied(close.t, now, finite=update is not None)

    def _decoded(self, unit: str, offer: Offer, decode: Callable[[], Decoded]) -> Decoded | Refusal:
        try:
            return decode()
        except codec.NonFiniteError as e:
            return refuse(Reason.NON_FINITE, unit, offer, str(e))
        except codec.CodecError as e:
            return refuse(Reason.BAD_SIZE, unit, offer, str(e))

    def _merge(self, close: Close, now: float) -> list[Action]:
        update = self.shard.compute(close)
        outcome = self.installed(close, update, now)
        if update is None or isinstance(outcome, Skipped):
            return [outcome]
        return [outcome, Broadcast(update.t, update.fragment, update.base, self.coding, update.payload)]

    def _check(self, state: CoreState) -> None:
        if difference := self.layout.difference(state.layout):
            raise LayoutError("the model is not the one in the stored state: " + "; ".join(difference))
        if len(state.versions) != len(self.fragments):
            raise StateError(
                f"the stored state is cut into {plural(len(state.versions), 'fragment')}, the job into {len(self.fragments)}: "
                "training.fragments cannot change"
            )
