"""The syncer's decisions as one state machine: events in, actions out. Pure: time is an argument, and nothing is awaited.

The clock t counts outer steps. The core takes step t when

1. at least K joined learners have reported a new local step since step t-1 (quorum, the paper),
2. the learners have done one mean step since then (`pacing`),
3. every exchange that was launched at or before t-1-tau is merged (tau: overlap, the paper), and
4. if a fragment p has t mod H == offset[p]: the grace window is over, or no further learner is expected in it.

With (4) the step launches the exchange of p: the core pulls p from every live learner that has trained p since its last adoption. The
exchange is merged as soon as all of them have answered or left; `Exchange.closes_at` limits the wait. The merge of step t makes
version t of the fragment.

After every event, and at `wake_at`, the caller calls `advance` and carries out the returned actions in order. Not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diloco import contract
from diloco.algorithm import codec
from diloco.algorithm.codec import Coding
from diloco.algorithm.events import Action, Broadcast, Finish, Merged, Metadata, Pull, Push, Reason, Refusal, Skipped, Snapshot
from diloco.algorithm.exchange import Contribution, Exchange
from diloco.algorithm.fragments import make_fragments, offsets
from diloco.algorithm.layout import Layout, LayoutError
from diloco.algorithm.members import Member, mean_step_seconds
from diloco.algorithm.merge import merge, norms
from diloco.algorithm.outer import nesterov
from diloco.algorithm.pacing import OuterStepBudget
from diloco.algorithm.quorum import QUORUM_ALPHA, SHARE_ALPHA, SYNC_ALPHA, MovingAverage, grace_seconds
from diloco.algorithm.state import ContributionStats, CoreState, StateError
from diloco.algorithm.weights import shares, weight
from diloco.wording import plural

Array = NDArray[np.float32]

REMEMBERED_EXCHANGES: Final = 64
"""Closed exchanges that the core remembers, to distinguish a late answer from one that was not asked for."""


class Core:
    """The state machine. `now` is in seconds on one monotonic clock, the same in every call. Values are flat float32 arrays."""

    def __init__(self, layout: Layout, training: contract.Training, state: CoreState | None = None) -> None:
        """Continue from `state`; without one the job has not begun.

        Raises LayoutError for too few tensors or another layout than the state's, StateError for another number of fragments than the
        state's, ValueError if training.overlapSteps is not less than syncInterval.
        """
        if training.overlap_steps >= training.sync_interval:
            raise ValueError(
                f"training.overlapSteps is {training.overlap_steps}; it must be less than syncInterval, {training.sync_interval}"
            )
        self.layout = layout
        self.training = training
        self.fragments = make_fragments(layout, training.fragments)
        self.coding = codec.coding_for(training.compression)
        self._launches = {offset: p for p, offset in enumerate(offsets(training.fragments, training.sync_interval))}
        self._t = 0
        self._versions: list[int] = [0] * len(self.fragments)
        self._values: list[Array] | None = None
        self._momentum: list[Array] = []
        self._residual: list[Array | None] = []
        self._contributions: dict[str, ContributionStats] = {}
        if state is not None:
            self._restore(state)
        self._members: dict[str, Member] = {}
        self._exchanges: OrderedDict[int, Exchange] = OrderedDict()
        self._closed_exchanges: OrderedDict[int, Exchange] = OrderedDict()
        self._budget = OuterStepBudget()
        self._quorum_seconds = MovingAverage(QUORUM_ALPHA)
        self._sync_seconds = MovingAverage(SYNC_ALPHA)
        self._stepped_at: float | None = None
        self._quorum_at: float | None = None
        self._snapshot_due = False
        self._finished = False

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def seeded(self) -> bool:
        """Whether the job has parameters."""
        return self._values is not None

    @property
    def t(self) -> int:
        """Outer steps taken."""
        return self._t

    @property
    def done(self) -> bool:
        """Step T is reached and every exchange is merged."""
        return self._finished

    @property
    def units(self) -> tuple[str, ...]:
        """Joined units, sorted."""
        return tuple(sorted(self._members))

    @property
    def step_seconds(self) -> float:
        """Duration of the mean learner step, seconds; 0 if it is unknown."""
        return mean_step_seconds(self._members.values())

    def version(self, p: int) -> int:
        """Outer step of the last merge of fragment p; 0 after the seed."""
        return self._versions[p]

    def value(self, p: int) -> Array:
        """Fragment p as float32 [size], read-only. A later merge makes a new array and leaves this one as it is. Raises ValueError before
        the seed."""
        return self._seeded_values()[p]

    def contributions_of(self, unit: str) -> ContributionStats:
        """What the unit has contributed, over all its attempts."""
        return self._contributions.get(unit, ContributionStats())

    def staleness(self, unit: str) -> int:
        """Outer steps since the unit's last contribution; without one, since it joined."""
        last = self.contributions_of(unit).last
        member = self._members.get(unit)
        return self._t - (last or (member.joined_t if member else 0))

    def live(self, unit: str, now: float) -> bool:
        """Whether the unit is joined and has reported lately."""
        member = self._members.get(unit)
        return member is not None and member.live(now)

    def state(self) -> CoreState:
        """What a snapshot must hold. Costs nothing: the arrays are shared and never written to. Raises ValueError before the seed."""
        values = tuple(self._seeded_values())
        return CoreState(
            self.layout, self._t, tuple(self._versions), values, tuple(self._momentum), tuple(self._residual), dict(self._contributions)
        )

    # --- events -------------------------------------------------------------------------------------------------------

    def seed(self, values: Sequence[Array]) -> Refusal | None:
        """Take the job's first parameters: one float32 [size] per fragment, by index. They are copied.

        Refused if the job has parameters already (STALE), for a wrong number or shape (BAD_SIZE), for NaN or infinity (NON_FINITE).
        """
        if self.seeded:
            return Refusal(Reason.STALE, "the job has parameters already; only the first seed counts")
        if len(values) != len(self.fragments):
            return Refusal(Reason.BAD_SIZE, f"the seed has {plural(len(values), 'fragment')}, the job {len(self.fragments)}")
        for fragment, value in zip(self.fragments, values, strict=True):
            if value.shape != (fragment.size,):
                return Refusal(Reason.BAD_SIZE, f"the seed of fragment {fragment.index} has shape {value.shape}, not ({fragment.size},)")
            if not codec.finite(value):
                names = ", ".join(x.name for x, where in fragment.slices() if not codec.finite(value[where]))
                return Refusal(Reason.NON_FINITE, f"the seed holds NaN or infinity in {names}")
        self._values = [_frozen(np.array(value, np.float32)) for value in values]
        self._momentum = [_frozen(np.zeros(fragment.size, np.float32)) for fragment in self.fragments]
        self._residual = [None] * len(self.fragments)
        return None

    def join(self, unit: str, now: float) -> None:
        """The unit has the current parameters and begins to train. A unit that is joined already joins anew, as another process."""
        self.leave(unit, now)
        self._members[unit] = Member(unit, self._t, [0] * len(self.fragments))

    def leave(self, unit: str, now: float) -> None:
        """The unit is gone, for any reason. Its contributions stand; the core waits for it no longer. Idempotent."""
        if self._members.pop(unit, None) is not None:
            for exchange in self._exchanges.values():
                exchange.answered(unit, self.training.quorum, now)

    def progress(self, unit: str, metadata: Metadata, now: float) -> None:
        """A learner has taken a local step. Ignored if the unit is not joined.

        Raises ValueError if there is not one counter per fragment: the learner is broken.
        """
        if len(metadata.steps) != len(self.fragments) or len(metadata.tokens) != len(self.fragments):
            raise ValueError(
                f"unit {unit} reports {len(metadata.steps)} step and {len(metadata.tokens)} token counters, "
                f"the job has {plural(len(self.fragments), 'fragment')}"
            )
        member = self._members.get(unit)
        if member is None:
            return
        if new := member.report(metadata, now):
            self._budget.add(new, sum(m.live(now) for m in self._members.values()))

    def push(self, unit: str, push: Push, now: float) -> Refusal | None:
        """Take a learner's answer to a pull. None: accepted; the merge will contain it, even if the unit leaves before.

        A refused unit is not waited for any longer in that exchange.
        """
        exchange = self._exchanges.get(push.t)
        if exchange is None or exchange.fragment != push.fragment or unit not in exchange.asked or unit not in self._members:
            return self._refuse_unknown(unit, push, now)
        if unit not in exchange.waiting:
            known = unit in exchange.contributions
            return _refuse(Reason.DUPLICATE if known else Reason.NOT_ASKED, unit, push, "it has answered, or left, before")
        member = self._members[unit]
        member.answer.add(max(0.0, now - exchange.launched_at))
        member.missed = False
        accepted = self._accept(unit, push)
        if isinstance(accepted, Contribution):
            exchange.contributions[unit] = accepted
        exchange.answered(unit, self.training.quorum, now)
        return None if isinstance(accepted, Contribution) else accepted

    # --- decisions ----------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Action]:
        """The actions that are due now, in order. Call it after every event and at `wake_at`. Idempotent."""
        actions: list[Action] = []
        if not self.seeded or self._finished:
            return actions
        while True:
            for exchange in [e for e in self._exchanges.values() if not e.waiting]:
                self._merge(exchange, now, actions)
            self._note_quorum(now)
            due = self._due_exchanges()
            if self._snapshot_due and not due:
                self._snapshot_due = False
                actions.append(Snapshot(self._t))
            if self._t == self.training.steps:
                due = list(self._exchanges.values())
                if not due:
                    self._finished = True
                    actions.append(Finish(self._t))
                    return actions
            elif not self._step_ready(now):
                return actions
            if not due:
                self._step(now, actions)
                continue
            closing = [e for e in due if now >= self._closes_at(e)]
            if not closing:
                return actions
            for exchange in closing:
                self._merge(exchange, now, actions)

    def wake_at(self, now: float) -> float | None:
        """When to call `advance` if no event comes before; None: only an event changes anything. Later than `now`."""
        if not self.seeded or self._finished:
            return None
        waits: list[float] = []
        if self._t == self.training.steps:
            waits = [self._closes_at(e) for e in self._exchanges.values()]
        elif self._quorum_at is not None and self._budget.ready:
            waits = (
                [self._grace_over(self._quorum_at)] if not self._step_ready(now) else [self._closes_at(e) for e in self._due_exchanges()]
            )
        later = [at for at in waits if at > now]
        return min(later) if later else None

    def _note_quorum(self, now: float) -> None:
        """Note whether the quorum of the next step is reached, and since when."""
        if sum(m.fresh for m in self._members.values()) < self.training.quorum:
            self._quorum_at = None
        elif self._quorum_at is None:
            self._quorum_at = now
            if self._stepped_at is not None:
                self._quorum_seconds.add(now - self._stepped_at)

    def _step_ready(self, now: float) -> bool:
        """Conditions 1, 2 and 4 of the next step; condition 3 is about exchanges."""
        return self._quorum_at is not None and self._budget.ready and now >= self._grace_over(self._quorum_at)

    def _grace_over(self, quorum_at: float) -> float:
        """When the grace window of the next step ends.

        Only a step with an exchange has a window, and only while a live learner that has not trained the fragment since its adoption is
        expected to report within it. A learner that can be pulled already is not waited for: it would add one more step, and the clock
        would fall behind the learners.
        """
        p = self._launches.get((self._t + 1) % self.training.sync_interval)
        if p is None:
            return quorum_at
        grace = self.training.grace
        deadline = quorum_at + grace_seconds(
            self.step_seconds,
            self._quorum_seconds.value or 0.0,
            self._sync_seconds.value or 0.0,
            self.training.overlap_steps,
            grace.safety_factor,
            grace.max_steps,
        )
        awaited = any(m.live(quorum_at) and not m.steps[p] and m.expected_at <= deadline for m in self._members.values())
        return deadline if awaited else quorum_at

    def _due_exchanges(self) -> list[Exchange]:
        """Exchanges that must be merged before the next step."""
        return [e for e in self._exchanges.values() if e.t + self.training.overlap_steps <= self._t]

    def _closes_at(self, exchange: Exchange) -> float:
        step = self.step_seconds
        return exchange.closes_at(self._members, self.training.overlap_steps * step, self.training.grace.max_steps * step)

    def _step(self, now: float, actions: list[Action]) -> None:
        """Take the next outer step."""
        self._t += 1
        self._budget.spend()
        self._stepped_at = now
        self._quorum_at = None
        for m in self._members.values():
            m.fresh = False
        if self._t % self.training.checkpoint.every_steps == 0 and self._t < self.training.steps:
            self._snapshot_due = True
        p = self._launches.get(self._t % self.training.sync_interval)
        if p is None:
            return
        units = tuple(sorted(m.unit for m in self._members.values() if m.live(now) and m.steps[p] > 0))
        if not units:
            actions.append(Skipped(self._t, p, "no live learner has trained it since it was broadcast"))
            return
        self._exchanges[self._t] = Exchange(self._t, p, now, frozenset(units), set(units))
        actions.append(Pull(self._t, p, units))

    # --- contributions ------------------------------------------------------------------------------------------------

    def _refuse_unknown(self, unit: str, push: Push, now: float) -> Refusal:
        closed = self._closed_exchanges.get(push.t)
        if closed is None or closed.fragment != push.fragment or unit not in closed.asked:
            return _refuse(Reason.NOT_ASKED, unit, push, "it was not asked for it")
        if unit in closed.contributions:
            return _refuse(Reason.DUPLICATE, unit, push, "it was merged already")
        if (member := self._members.get(unit)) is not None and member.missed:
            # Not averaged in: the next deadline must cover an answer as slow as this one, or exchange after exchange closes too early.
            member.answer.add_or_raise(max(0.0, now - closed.launched_at))
            member.missed = False
        return _refuse(Reason.STALE, unit, push, "it came after the merge")

    def _accept(self, unit: str, push: Push) -> Contribution | Refusal:
        """Check and decode a push that was asked for."""
        p = push.fragment
        if push.steps <= 0 or push.tokens <= 0:
            return _refuse(Reason.NO_WORK, unit, push, f"it holds {plural(push.tokens, 'token')} in {plural(push.steps, 'step')}")
        if push.coding not in (Coding.FLOAT32, self.coding):
            return _refuse(Reason.WRONG_CODING, unit, push, f"it is coded {push.coding.name}, the job uses {self.coding.name}")
        if push.coding.delta and push.base != self._versions[p]:
            return _refuse(Reason.WRONG_BASE, unit, push, f"it is a delta against version {push.base}, the syncer has {self._versions[p]}")
        anchor = self.value(p)
        try:
            decoded = codec.decode(push.coding, push.payload, anchor.size)
        except codec.NonFiniteError as e:
            return _refuse(Reason.NON_FINITE, unit, push, str(e))
        except codec.CodecError as e:
            return _refuse(Reason.BAD_SIZE, unit, push, str(e))
        # A delta is theta - anchor in an array of its own; the outer gradient is its opposite.
        delta = np.negative(decoded, out=decoded) if push.coding.delta else anchor - decoded
        return Contribution(delta, norms(self.fragments[p], delta), weight(push.tokens, push.steps))

    def _merge(self, exchange: Exchange, now: float, actions: list[Action]) -> None:
        """Close an exchange: merge, outer optimizer, new version. Without contributions, or with a result that is not finite, the fragment
        keeps its value."""
        del self._exchanges[exchange.t]
        for unit in exchange.waiting:
            self._members[unit].missed = True
        self._remember(exchange)
        units = tuple(sorted(exchange.contributions))
        if not units:
            actions.append(Skipped(exchange.t, exchange.fragment, f"none of {len(exchange.asked)} asked learners answered"))
            return
        p, values = exchange.fragment, self._seeded_values()
        given = [exchange.contributions[unit] for unit in units]
        how = self.training.merge
        with np.errstate(over="ignore", invalid="ignore"):  # judged by its result
            delta = merge(
                self.fragments[p],
                [c.delta for c in given],
                [c.norms for c in given],
                [c.weight for c in given],
                how.method,
                how.embeddings,
            )
            optimizer = self.training.outer_optimizer
            step, momentum = nesterov(delta, self._momentum[p], optimizer.learning_rate, optimizer.momentum)
            coded = self._code(p, step)
        if coded is None or not codec.finite(momentum):
            actions.append(Skipped(exchange.t, p, "the merged update is not finite: training has diverged; the fragment keeps its value"))
            return
        payload, value, residual = coded
        base = self._versions[p]
        values[p], self._momentum[p], self._residual[p] = value, _frozen(momentum), residual
        self._versions[p] = exchange.t
        self._sync_seconds.add(max(0.0, now - exchange.launched_at))
        for m in self._members.values():
            m.steps[p] = 0
        weights = {unit: c.weight for unit, c in zip(units, given, strict=True)}
        self._credit(exchange.t, weights)
        actions.append(Merged(exchange.t, p, units, weights))
        actions.append(Broadcast(exchange.t, p, base, self.coding, payload))

    def _code(self, p: int, step: Array) -> tuple[memoryview, Array, Array | None] | None:
        """(payload, new value, new residual) of subtracting `step` from fragment p; None if that is not finite."""
        anchor, carried = self.value(p), self._residual[p]
        try:
            if not self.coding.delta:
                value = _frozen(anchor - step)
                return codec.encode(self.coding, value), value, None
            update = np.negative(step)
            if carried is not None:
                update += carried
            payload = codec.encode(self.coding, update)
            value = _frozen(codec.value_of(self.coding, payload, anchor))
            if self.coding is not Coding.INT4_DELTA:
                return payload, value, None
            # Levels are coarse: without the residual, updates below half a level would be lost each time.
            update -= codec.decode(self.coding, payload, update.size)
            return payload, value, _frozen(update)
        except codec.NonFiniteError:
            return None

    def _credit(self, t: int, weights: dict[str, float]) -> None:
        for unit, share in shares(weights).items():
            before = self.contributions_of(unit)
            average = MovingAverage(SHARE_ALPHA, before.share if before.contributions else None)
            average.add(share)
            self._contributions[unit] = ContributionStats(before.contributions + 1, max(t, before.last), average.value or 0.0)

    def _remember(self, exchange: Exchange) -> None:
        self._closed_exchanges[exchange.t] = replace(exchange, contributions=dict.fromkeys(exchange.contributions, _MERGED))
        while len(self._closed_exchanges) > REMEMBERED_EXCHANGES:
            self._closed_exchanges.popitem(last=False)

    # --- state --------------------------------------------------------------------------------------------------------

    def _seeded_values(self) -> list[Array]:
        if self._values is None:
            raise ValueError("the job has no parameters yet")
        return self._values

    def _restore(self, state: CoreState) -> None:
        if difference := self.layout.difference(state.layout):
            raise LayoutError("the model is not the one in the stored state: " + "; ".join(difference))
        if len(state.versions) != len(self.fragments):
            raise StateError(
                f"the stored state is cut into {plural(len(state.versions), 'fragment')}, the job into {len(self.fragments)}: "
                "training.fragments cannot change"
            )
        self._t = state.t
        self._versions = list(state.versions)
        self._values = list(state.values)
        self._momentum = list(state.momentum)
        self._residual = list(state.residual)
        self._contributions = dict(state.contributions)


_MERGED: Final = Contribution(np.empty(0, np.float32), (), 0.0)
"""Stands for a contribution whose values are merged and no longer needed."""


def _frozen(x: Array) -> Array:
    x.flags.writeable = False
    return x


def _refuse(reason: Reason, unit: str, push: Push, why: str) -> Refusal:
    return Refusal(reason, f"fragment {push.fragment} of outer step {push.t} from unit {unit} is refused: {why}")
