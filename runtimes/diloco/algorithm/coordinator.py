"""The syncer's decisions as one state machine without arrays: events in, orders out. Pure: time is an argument, and nothing is awaited.

The clock t counts outer steps. The coordinator takes step t when

1. at least K joined learners have reported a new local step since step t-1 (quorum, the paper),
2. the learners have done one mean step since then (`pacing`; another `Clock` may say otherwise),
3. every exchange that was launched at or before t-1-tau is merged (tau: overlap, the paper), and
4. if a fragment p has t mod H == offset[p]: the grace window is over, or no further learner is expected in it.

If (4) names a fragment p, the step launches its exchange: the coordinator pulls p from every learner that is not lost and has trained p
since its last adoption.
An answer goes through `admit` before it is decoded, and then through `contributed` or `rejected`. The exchange is closed as soon as all
units that were asked have answered or left; `Exchange.closes_at` limits the wait. `Close` orders a shard to merge, and the shard's result
comes back with `applied`. The merge of step t makes version t of the fragment. Before that, contributions that the guards refuse are taken
out, and their units with them: `ContributionRejected`.

While the quorum of (1) is missing, `Rest` stops learners that are further ahead than the clock could catch up with.

A fragment has one exchange at a time, as tau < H. So its value does not change while an answer of an open exchange is decoded.

After every event, and at `wake_at`, the caller calls `advance` until it returns nothing. Not thread-safe.

See docs/decisions/0148-driver-and-threads.md. See docs/decisions/0153-guards.md.
See docs/decisions/0060-outer-clock-and-quorum.md.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from diloco import contract
from diloco.algorithm.clock import Clock, PullClock
from diloco.algorithm.codec import Coding, coding_for
from diloco.algorithm.effects import Close, ContributionRejected, Finish, Merged, Order, Pull, Reason, Refusal, Rest, Skipped, Snapshot
from diloco.algorithm.events import Metadata, Offer
from diloco.algorithm.exchange import Contribution, Exchange
from diloco.algorithm.fragments import offsets
from diloco.algorithm.guards import Guard, Measured
from diloco.algorithm.members import Member, Members
from diloco.algorithm.pacing import countable_steps
from diloco.algorithm.quarantine import Quarantine
from diloco.algorithm.quorum import OUTER_ALPHA, QUORUM_ALPHA, SYNC_ALPHA, MovingAverage, grace_seconds
from diloco.algorithm.state import ContributionStats
from diloco.algorithm.weights import MergeShares, Shares, weight
from diloco.wording import plural

REMEMBERED_EXCHANGES: Final = 64
"""Closed exchanges that the coordinator remembers, to distinguish a late answer from one that was not asked for."""


class Coordinator:
    """The state machine. `now` is in seconds on one monotonic clock, the same in every call."""

    def __init__(
        self,
        training: contract.Training,
        guard: Guard,
        t: int = 0,
        versions: Sequence[int] | None = None,
        contributions: Mapping[str, ContributionStats] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Continue at outer step `t` with `versions`, one for each fragment; None if the job has not begun. The default clock is
        `PullClock`.

        Raises ValueError if training.overlapSteps is not less than syncInterval.
        """
        if training.overlap_steps >= training.sync_interval:
            raise ValueError(
                f"training.overlapSteps is {training.overlap_steps}; it must be less than syncInterval, {training.sync_interval}"
            )
        self.training = training
        self._last = max(training.steps, t)
        """The outer step at which the job ends. A job that is past it, because its steps were lowered, ends where it is."""
        self.coding = coding_for(training.compression)
        self._launches = {offset: p for p, offset in enumerate(offsets(training.fragments, training.sync_interval))}
        self._t = t
        self._versions = [0] * training.fragments if versions is None else list(versions)
        self._contributions = dict(contributions or {})
        self._shares = Shares({unit: stats.share for unit, stats in self._contributions.items()})
        self._merge_shares = MergeShares()
        self._guard = guard
        self._quarantine = Quarantine(training.fragments)
        self._steps_per_sync: dict[str, int] = {}
        self._members = Members()
        self._open: OrderedDict[int, Exchange] = OrderedDict()
        self._ordered: OrderedDict[int, Exchange] = OrderedDict()
        """Closed exchanges whose merge is ordered and not applied yet."""
        self._remembered: OrderedDict[int, Exchange] = OrderedDict()
        self._clock = clock if clock is not None else PullClock(training.sync_interval)
        self._quorum_seconds = MovingAverage(QUORUM_ALPHA)
        self._sync_seconds = MovingAverage(SYNC_ALPHA)
        self._outer_seconds = MovingAverage(OUTER_ALPHA, even=True)
        self._stepped_at: float | None = None
        self._quorum_at: float | None = None
        self._waited = False
        """Whether the last call of `advance` found that the quorum is missing."""
        self._reported: dict[str, Member] = {}
        """Units that have reported since that call of `advance`."""
        self._answered_by_all = False
        """Whether some open exchange may wait for no unit any more."""
        self._snapshot_due = False
        self._begun = versions is not None
        self._finished = False

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether the job has parameters."""
        return self._begun

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
        return tuple(sorted(m.unit for m in self._members))

    @property
    def step_seconds(self) -> float:
        """Duration of the mean learner step, in seconds; 0 if unknown."""
        return self._members.step_seconds

    @property
    def outer_step_seconds(self) -> float:
        """Recent duration of an outer step with all its waits, in seconds; 0 before the second one."""
        return self._outer_seconds.value or 0.0

    @property
    def versions(self) -> tuple[int, ...]:
        """The outer step of each fragment's last merge; 0 after the seed."""
        return tuple(self._versions)

    @property
    def contributions(self) -> Mapping[str, ContributionStats]:
        """What each unit has contributed, over all its attempts. A copy."""
        return {unit: self.contributions_of(unit) for unit in self._contributions}

    def contributions_of(self, unit: str) -> ContributionStats:
        """What the unit has contributed, over all its attempts."""
        known = self._contributions.get(unit)
        return replace(known, share=self._shares.of(unit)) if known is not None else ContributionStats()

    def staleness(self, unit: str) -> int:
        """Outer steps since the unit's last contribution, or since it joined if it has made none."""
        last = self.contributions_of(unit).last
        member = self._members.get(unit)
        return self._t - (last or (member.joined_t if member else 0))

    def steps_per_sync(self, unit: str) -> int:
        """Local steps in the unit's last merged contribution, since its adoption of the fragment: its real H. 0 if none was merged since
        this process began."""
        return self._steps_per_sync.get(unit, 0)

    def merge_share(self, unit: str) -> float:
        """As `MergeShares.of`."""
        return self._merge_shares.of(unit)

    def ordered(self, t: int) -> Exchange:
        """The exchange that the `Close` of outer step `t` merges, for reading. Raises KeyError if there is none, or it is applied."""
        return self._ordered[t]

    # --- events of units ----------------------------------------------------------------------------------------------

    def begin(self, norms: Sequence[float]) -> None:
        """The job has parameters now: version 0 of every fragment. `norms`: the Euclidean norm of each fragment's value."""
        self._guard.begin(norms)
        self._begun = True

    def end(self, t: int) -> None:
        """End the job at outer step `t`, or at the present one if that is later. This never makes a job longer."""
        self._last = min(self._last, max(t, self._t))

    def join(self, unit: str, now: float) -> None:
        """A unit has the current parameters and begins to train. If it is joined already, this is a new process of it."""
        # First, so that no open exchange waits for the unit's former process.
        self.leave(unit, now)
        self._members.join(Member(unit, self._t, [0] * len(self._versions)))
        self._guard.joined(unit)

    def leave(self, unit: str, now: float) -> None:
        """A unit is gone. Its contributions stay, and no exchange waits for it any longer. Idempotent."""
        if self._members.leave(unit):
            self._clock.forget(unit)
            self._reported.pop(unit, None)
            # An exchange that waits for this unit alone would stay open for ever.
            for exchange in self._open.values():
                self._answered(exchange, unit, now)

    def progress(self, unit: str, metadata: Metadata, now: float) -> None:
        """A learner has taken a local step. Ignored if the unit is not joined.

        Raises ValueError unless there is one counter for each fragment: the learner is broken.
        """
        if wrong := self.miscounted(unit, len(metadata.steps), len(metadata.tokens)):
            raise ValueError(wrong)
        member = self._members.get(unit)
        if member is None:
            return
        new = self._members.report(member, metadata, now)
        self._reported[unit] = member
        if new:
            self._clock.add(unit, new, self._members.counting)

    def miscounted(self, unit: str, steps: int, tokens: int) -> str:
        """Return what is wrong with a report of so many step and token counters, or "". Asked before they are read, of which there may be
        millions."""
        if steps == tokens == len(self._versions):
            return ""
        return f"unit {unit} reports {steps} step and {tokens} token counters, the job has {plural(len(self._versions), 'fragment')}"

    def paused(self, unit: str, until: float, now: float) -> None:
        """A learner has announced that it takes no steps until `until`; a time in the past ends its pause. Ignored if the unit is not
        joined."""
        self._members.pauses(unit, until, now)

    def alive(self, unit: str, now: float) -> None:
        """A learner's process is alive, although it may take no step, so it counts (see `members`). Ignored if the unit is not joined."""
        self._members.alive(unit, now)

    # --- events of answers --------------------------------------------------------------------------------------------

    def awaits(self, unit: str, offer: Offer) -> bool:
        """Whether `admit` would take this answer now. Changes nothing, so it can be asked for each part of an answer."""
        exchange = self._open.get(offer.t)
        if exchange is None or exchange.fragment != offer.fragment or unit not in exchange.waiting or unit in exchange.arriving:
            return False
        return self._judge(self._members[unit], offer) is None

    def admit(self, unit: str, offer: Offer, now: float) -> Refusal | None:
        """Judge an answer before it is decoded. Returns None if it is admitted: then decode it and call `contributed` or `rejected`; until
        then the exchange stays open. The exchange waits no longer for a refused unit."""
        exchange = self._open.get(offer.t)
        if exchange is None or exchange.fragment != offer.fragment or unit not in exchange.asked or unit not in self._members:
            return self._refuse_unknown(unit, offer, now)
        if unit not in exchange.waiting or unit in exchange.arriving:
            known = unit in exchange.contributions or unit in exchange.arriving
            return refuse(Reason.DUPLICATE if known else Reason.NOT_ASKED, unit, offer, "it has answered, or left, before")
        member = self._members[unit]
        # Before the judgement: a refused answer took time as well, and the next deadline follows from how long answers take.
        member.answer.add(max(0.0, now - exchange.launched_at))
        member.missed = False
        refusal = self._judge(member, offer)
        if refusal is None:
            exchange.arriving.add(unit)
        else:
            exchange.refused[unit] = refusal
            self._answered(exchange, unit, now)
        return refusal

    def contributed(self, unit: str, offer: Offer, norm: float, now: float, countable_tokens: float = math.inf) -> Refusal | None:
        """An admitted answer is decoded. Returns a refusal if the unit has left meanwhile. Otherwise returns None, and the merge will
        contain the answer, even if the unit leaves before it, unless the guards refuse it then.

        Args:
            norm: Euclidean norm of the outer gradient.
            countable_tokens: the most tokens that count in the contribution's weight.
        """
        exchange = self._open.get(offer.t)
        # The unit may have left while its answer was decoded. The answer must not count for the unit's next process.
        if exchange is None or unit not in exchange.arriving:
            return refuse(Reason.NOT_ASKED, unit, offer, "it left before it was decoded")
        member = self._members[unit]
        measured = Measured(unit, norm, offer.steps, offer.tokens)
        countable = countable_steps(self._t - self._versions[offer.fragment], self.training.sync_interval)
        # Steps beyond the bound leave the weight as it is at the bound. For all others the factor is 1.0, which changes no bit.
        weighed = weight(min(offer.tokens, countable_tokens), offer.steps) * min(1.0, countable / offer.steps)
        exchange.contributions[unit] = Contribution(weighed, offer.steps, offer.marks, measured, member)
        self._answered(exchange, unit, now)
        return None

    def rejected(self, unit: str, offer: Offer, now: float) -> None:
        """An admitted answer cannot be used. The exchange waits no longer for this unit. Idempotent."""
        exchange = self._open.get(offer.t)
        if exchange is not None and unit in exchange.arriving:
            self._answered(exchange, unit, now)

    def applied(self, t: int, now: float, *, finite: bool) -> Merged | Skipped:
        """The shard has carried out the order of outer step `t`. If the update is not `finite`, the fragment keeps its value.

        Raises KeyError if there is no such order.
        """
        exchange = self._ordered.pop(t)
        p, given = exchange.fragment, exchange.contributions
        if not finite:
            return Skipped(t, p, "the merged update is not finite: training has diverged; the fragment keeps its value")
        # Only here: a fragment that kept its value has no new version, and must not be sent to learners as one.
        self._versions[p] = t
        self._sync_seconds.add(max(0.0, now - exchange.launched_at))
        self._members.merged(p)
        units = tuple(sorted(given))
        weights = {unit: given[unit].weight for unit in units}
        self._credit(t, weights)
        self._steps_per_sync |= {unit: given[unit].steps for unit in units}
        return Merged(t, p, units, weights, {unit: given[unit].marks for unit in units})

    # --- decisions ----------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Order]:
        """Return the orders that are due now. Carry them out in order, then call it again, until there are none. Idempotent.

        `advance` does not wait for the shard to finish a `Close`: it goes on with what does not depend on the result.
        """
        if not self._begun or self._finished:
            return []
        self._members.look(now)
        return self._steps_and_merges(now) or self._rests()

    def _steps_and_merges(self, now: float) -> list[Order]:
        orders: list[Order] = []
        while True:
            # Before anything else, as the quorum need not be there: an exchange that waits for no unit is merged at once.
            if self._answered_by_all:
                self._answered_by_all = False
                if self._close([e for e in self._open.values() if not e.waiting], now, orders):
                    return orders
            self._note_quorum(now)
            if self._t < self._last and not self._snapshot_due and not self._step_ready(now):
                return orders  # most reports and answers change nothing yet
            due = self._due_exchanges()
            if self._snapshot_due and not due:
                self._snapshot_due = False
                orders.append(Snapshot(self._t))
            if self._t == self._last:
                if not due:
                    self._finished = True
                    orders.append(Finish(self._t))
                    return orders
            elif not self._step_ready(now):
                return orders
            if not due:
                self._step(now, orders)
                continue
            # An answer that is being decoded keeps its exchange open: `admit` has promised that the merge will contain it.
            closing = [e for e in due if e.t in self._open and not e.arriving and self._is_over(e, now)]
            if not closing or self._close(closing, now, orders):
                return orders

    def wake_at(self, now: float) -> float | None:
        """When to call `advance` if no event comes before, later than `now`; None if only an event can change anything."""
        if not self._begun or self._finished:
            return None
        if self._t < self._last:
            if self._quorum_at is None or not self._clock.ready:
                return None
            grace_over = self._grace_over(self._quorum_at)
            if now < grace_over:
                return grace_over
        waits = [self._closes_at(e, now) for e in self._due_exchanges() if e.t in self._open and not e.arriving]
        # A time in the past changes nothing more. With it the caller would call `advance` again and again, and never sleep.
        later = [at for at in waits if at > now]
        return min(later) if later else None

    def _note_quorum(self, now: float) -> None:
        """Update since when the quorum of the next step is reached."""
        # A unit that had reported may have left since the last call, and the step must not be taken without a quorum.
        if self._members.fresh < self.training.quorum:
            self._quorum_at = None
        elif self._quorum_at is None:
            self._quorum_at = now
            if self._stepped_at is not None:
                self._quorum_seconds.add(now - self._stepped_at)

    def _rests(self) -> list[Order]:
        """Tell units to rest, or to train again. Only a learner that has reported rests, so the quorum never waits for a learner that
        rests."""
        waits = self._quorum_at is None and self._t < self._last
        if waits is self._waited and not self._reported:
            return []
        # For a unit that has not reported since, only a change of `waits` can change anything.
        candidates = self._reported.values() if waits is self._waited else self._members
        changed = [m for m in candidates if m.resting != (waits and m.fresh and self._clock.exhausted(m.unit))]
        self._waited, self._reported = waits, {}
        for m in changed:
            m.resting = not m.resting
        return [Rest(m.unit, m.resting) for m in changed]

    def _step_ready(self, now: float) -> bool:
        """Whether conditions 1, 2 and 4 of the next step hold. `_due_exchanges` is condition 3."""
        return self._quorum_at is not None and self._clock.ready and now >= self._grace_over(self._quorum_at)

    def _grace_over(self, quorum_at: float) -> float:
        """Return when the grace window of the next step ends.

        Only a step with an exchange has a window, and only while the clock knows a learner to wait for. `PullClock` waits for a learner
        that has not trained the fragment since its adoption and is expected to report within the window. It does not wait for a learner
        that can be pulled already: that one would only add one more step, and the clock would fall behind the learners. Nor does it wait
        for a learner whose report is overdue, which may evaluate: each step would wait for it.
        """
        p = self._launches.get((self._t + 1) % self.training.sync_interval)
        if p is None:
            return quorum_at
        grace = self.training.grace
        deadline = quorum_at + grace_seconds(
            self._members.outer_step_seconds,
            self._quorum_seconds.value or 0.0,
            self._sync_seconds.value or 0.0,
            self.training.overlap_steps,
            grace.safety_factor,
            grace.max_steps,
        )
        return deadline if self._clock.waits_for(self._members, p, quorum_at, deadline) else quorum_at

    def _due_exchanges(self) -> list[Exchange]:
        """Exchanges that must be merged before the next step; after the last step, before the end."""
        unmerged = [*self._ordered.values(), *self._open.values()]
        if self._t == self._last:
            return unmerged
        return [e for e in unmerged if e.t + self.training.overlap_steps <= self._t]

    def _is_over(self, exchange: Exchange, now: float) -> bool:
        """Whether an open exchange whose merge the clock needs should wait no longer."""
        used_up = exchange.used_up(self._clock.worked, self.training.overlap_steps, self.training.grace.max_steps)
        return used_up or now >= self._closes_at(exchange, now)

    def _closes_at(self, exchange: Exchange, now: float) -> float:
        step = self._members.outer_step_seconds if self._clock.overdue else self._members.step_seconds

        def deadline(unit: str) -> float:
            member = self._members[unit]
            if self._t == self._last:
                return member.last_answer_deadline(exchange.launched_at)
            return member.answer_deadline(exchange.launched_at)

        return exchange.closes_at(now, deadline, self.training.overlap_steps * step, self.training.grace.max_steps * step)

    def _step(self, now: float, orders: list[Order]) -> None:
        self._t += 1
        self._clock.spend()
        if self._stepped_at is not None:
            self._outer_seconds.add(now - self._stepped_at)
        self._stepped_at = now
        self._quorum_at = None
        p = self._launches.get(self._t % self.training.sync_interval)
        # Before `stepped`: after it no member has a new step, which a clock may ask about.
        units = tuple(sorted(m.unit for m in self._members if self._clock.asks(m, p))) if p is not None else ()
        self._members.stepped()
        self._waited = False
        # Not at the last step: its snapshot is the final one, which follows `Finish`.
        if self._t % self.training.checkpoint.every_steps == 0 and self._t < self._last:
            self._snapshot_due = True
        if p is None:
            return
        if not units:
            orders.append(Skipped(self._t, p, "no learner that reports has trained it since it was broadcast"))
            return
        self._open[self._t] = Exchange(self._t, p, now, self._clock.worked, frozenset(units), set(units))
        orders.append(Pull(self._t, p, units))

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def _answered(self, exchange: Exchange, unit: str, now: float) -> None:
        exchange.answered(unit, self.training.quorum, now, self._clock.worked)
        self._answered_by_all |= not exchange.waiting

    def _judge(self, member: Member, offer: Offer) -> Refusal | None:
        """Why an answer that was asked for cannot be used, judged by its head; None if it can."""
        unit = member.unit
        if offer.steps <= 0 or offer.tokens <= 0:
            return refuse(Reason.NO_WORK, unit, offer, f"it holds {plural(offer.tokens, 'token')} in {plural(offer.steps, 'step')}")
        if impossible := self._guard.impossible(offer.steps, offer.tokens):
            return refuse(Reason.IMPOSSIBLE, unit, offer, impossible)
        if offer.coding not in (Coding.FLOAT32, self.coding):
            return refuse(Reason.WRONG_CODING, unit, offer, f"it is coded {offer.coding.name}, the job uses {self.coding.name}")
        version = self._versions[offer.fragment]
        if offer.coding.delta and offer.base != version:
            return refuse(Reason.WRONG_BASE, unit, offer, f"it is a delta against version {offer.base}, the syncer has {version}")
        return None

    def _refuse_unknown(self, unit: str, offer: Offer, now: float) -> Refusal:
        closed = self._remembered.get(offer.t)
        if closed is None or closed.fragment != offer.fragment or unit not in closed.asked:
            return refuse(Reason.NOT_ASKED, unit, offer, "it was not asked for it")
        if unit in closed.contributions:
            return refuse(Reason.DUPLICATE, unit, offer, "it was merged already")
        if (member := self._members.get(unit)) is not None and member.missed:
            # A plain average would rise too slowly: the next deadline must cover an answer as slow as this one, or exchange after exchange
            # closes too early.
            member.answer.add_or_raise(max(0.0, now - closed.launched_at))
            member.missed = False
        return refuse(Reason.STALE, unit, offer, "it came after the merge")

    def _close(self, exchanges: Sequence[Exchange], now: float, orders: list[Order]) -> bool:
        """Close exchanges that are over, and append their orders. Without contributions a fragment keeps its value.

        Returns whether there is an order to merge.
        """
        ordered = False
        for exchange in exchanges:
            if exchange.waiting and not self._is_over(exchange, now):
                continue  # the quorum is lost, as one before it was closed whose refused unit is withdrawn from this one
            del self._open[exchange.t]
            exchange.closed_at = now
            # Their answers may still come, and then tell how long the next deadline must be.
            for unit in exchange.waiting:
                self._members[unit].missed = True
            self._remember(exchange)
            answers = len(exchange.contributions)
            orders += self._reject(exchange, now)
            given = exchange.contributions
            if not given:
                why = (
                    f"the guards refuse {'its one answer' if answers == 1 else f'all {answers} answers'}"
                    if answers
                    else (f"none of {len(exchange.asked)} asked learners answered")
                )
                orders.append(Skipped(exchange.t, exchange.fragment, why))
                continue
            ordered = True
            self._ordered[exchange.t] = exchange
            units = tuple(sorted(given))
            weights = tuple(given[unit].weight for unit in units)
            orders.append(Close(exchange.t, exchange.fragment, self._versions[exchange.fragment], units, weights))
        return ordered

    def _reject(self, exchange: Exchange, now: float) -> list[ContributionRejected]:
        """Remove from a closed exchange the contributions that the guards refuse, and their units from the members. Reduce the weight of
        contributions that are too long."""
        given = exchange.contributions
        if not given:
            return []
        measured = [given[unit].measured for unit in sorted(given)]
        verdicts = self._guard.judge(exchange.fragment, measured)
        accepted = [x for x in measured if x.unit not in verdicts]
        for unit, part in self._guard.lighter(exchange.fragment, accepted).items():
            given[unit].weight *= part
        self._guard.merged(exchange.fragment, accepted)
        quarantined = self._quarantine.judged(verdicts, [unit for unit in given if unit not in verdicts])
        orders: list[ContributionRejected] = []
        for unit, why in verdicts.items():
            contribution = given.pop(unit)
            # Another process of the unit may have joined since, which is not to blame.
            if self._members.get(unit) is contribution.member:
                self.leave(unit, now)
            # The unit's contributions to other open exchanges have the same fault. They count as one refusal with this one.
            withdrawn = [e for e in self._open.values() if unit in e.contributions and e.contributions[unit].member is contribution.member]
            for other in withdrawn:
                other.withdraw(unit, self.training.quorum)
            message = f"fragment {exchange.fragment} of outer step {exchange.t} from unit {unit} is refused: {why}"
            refusal = exchange.refused[unit] = Refusal(Reason.OUTLIER, message)
            orders.append(
                ContributionRejected(
                    exchange.t,
                    exchange.fragment,
                    unit,
                    contribution.marks.session,
                    refusal,
                    tuple(other.t for other in withdrawn),
                    unit in quarantined,
                )
            )
        return orders

    def _credit(self, t: int, weights: Mapping[str, float]) -> None:
        self._shares.merged(weights)
        self._merge_shares.merged(weights)
        for unit in weights:
            before = self._contributions.get(unit, ContributionStats())
            # Hence the max: merges of two fragments may be applied in another order than they were ordered.
            self._contributions[unit] = ContributionStats(before.contributions + 1, max(t, before.last))

    def _remember(self, exchange: Exchange) -> None:
        self._remembered[exchange.t] = exchange
        while len(self._remembered) > REMEMBERED_EXCHANGES:
            self._remembered.popitem(last=False)


def refuse(reason: Reason, unit: str, offer: Offer, why: str) -> Refusal:
    """Return the refusal of an answer. Its message names unit, fragment and outer step."""
    return Refusal(reason, f"fragment {offer.fragment} of outer step {offer.t} from unit {unit} is refused: {why}")
