"""The leader: the rank that decides for its unit and speaks for it to the syncer.

See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from diloco.learner.inbox import InboxEvent, RefusedForGood
from diloco.learner.incarnations import Incarnations
from diloco.learner.leave import LoopError
from diloco.learner.member import MemberParts
from diloco.learner.push_header import PushCounts
from diloco.learner.unit_plan import UnitPlan, UnitState, most_at_once, new_unit, plan_boundary
from diloco.learner.work import AHEAD_BATCHES
from diloco.protocol.diloco_pb2 import Bye
from diloco.ranks import messages, ranks_pb2
from diloco.ranks.batch_dealer import BatchDealer
from diloco.ranks.channel import COUNTERS_TIMEOUT, LEAVING_TIMEOUT
from diloco.ranks.leader import Leader
from diloco.ranks.member import RankMember
from diloco.ranks.orders import LAST, Action, Last, Order, TakeState, Version
from diloco.ranks.ranks_pb2 import FromLeader
from diloco.ranks.samples import DataRank, Ranges
from diloco.ranks.schedule import Schedule, ahead
from diloco.ranks.settled_counts import SettledCounts
from diloco.ranks.state_of_unit import StateOfUnit
from diloco.wording import plural

_log = logging.getLogger(__name__)

FIRST_BATCHES = 8
"""Batches that are dealt for a step until the first step has shown how many it takes."""


class LeaderMember(RankMember[Leader]):
    def __init__(
        self,
        parts: MemberParts,
        data: DataRank,
        channel: Leader,
        incarnations: Incarnations,
        counting: Sequence[int],
        inner: StateOfUnit | None,
    ) -> None:
        """
        Args:
            incarnations: the syncer's incarnations that this rank's own stream has met
            counting: the ranks whose tokens count, one of all that train the same samples
            inner: the state of all ranks. None if the unit neither gives, stores nor takes any
        """
        super().__init__(parts, data, channel, inner.leader if inner is not None else None)
        self._incarnations = incarnations
        self._inner = inner
        if inner is not None:
            inner.take = self._order_to_take
        # Nothing to do: ranks put no parameters into the model before the copy is whole, and then each tells its own program.
        self._connect_peers(lambda: None, lambda: None)
        self._events: list[InboxEvent] = []
        self._untranslated: list[tuple[int, ranks_pb2.VersionReceived]] = []
        """Versions of a syncer that this rank's own stream has not met yet, with the ranks that have told of them."""
        everyone, fragments = range(channel.me.ranks), len(self._model.names)
        self._schedule = Schedule(new_unit(fragments, parts.training.steps), [everyone] * fragments, counting, self._plan)
        self._dealer = BatchDealer(self._give)
        channel.wanted = self._deal_more
        self._feeds_itself = False
        self._per_step = FIRST_BATCHES
        """Batches that the last step settled."""
        self._shards = False
        """The program takes shards, not batches."""
        self._settled = SettledCounts(channel.me.ranks)
        self._data_said: list[list[str]] = [[] for _ in everyone]
        """For each rank the `data` of each of its loops, see `Member.reads`."""
        self._reported = 0
        """The local step of the last report of progress."""

    # --- what it does -------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        if self._peers.awaited and not self._schedule.state.missing:
            self._peers.wait(seconds)
        else:
            super().wait(seconds)

    def boundary(self, *, in_step: bool = False) -> None:
        super().boundary(in_step=in_step)
        events, plan = self._since_last()
        # The schedule's state is some steps ahead of this rank. `done` is true after any last order here: no order to take a state follows.
        state = replace(self._schedule.state, step=self.step_count, done=self._end is not None)
        readable = not (in_step or self._model.store.lent)
        if self._inner is not None:
            self._inner.released = self._schedule.state.step
        self._peers.boundary(events, plan, state, self._step_seconds, readable=readable)
        if self._state is not None:
            self._state.at_boundary(self.step_count, self._step_seconds, readable=readable)

    def stepped(self, tokens: int, loss: float | None, step_seconds: float, batches: int | None) -> None:
        super().stepped(tokens, loss, step_seconds, batches)
        self._peers.stepped()

    @property
    def who(self) -> str:
        taken = plural(self._taken, "batch", "batches")
        return f"{self._channel.me.name(0)} ({taken} taken so far; all ranks settle the same number in each step)"

    @property
    def why_none(self) -> str:
        return self._dealer.why_none

    def close(self) -> None:
        self._close_state()
        if self.draining:
            until = time.monotonic() + COUNTERS_TIMEOUT
            while self._schedule.counts.step < self.step_count and (left := until - time.monotonic()) > 0:
                self.wait(left)
                self._hear()
            self._say_counted(self._schedule.counts.ready())
            self._send()
            if not self._channel.wait_until_left(LEAVING_TIMEOUT):
                _log.warning("not all ranks of unit %s have sent their last pushes within %.0f s", self._unit, LEAVING_TIMEOUT)
        reached = self._reached()
        left = not (self.done or self.draining)
        self.link.close(Bye(drained=not self.done, left=left, samples_done=reached.samples_done, tokens_done=reached.tokens_done))
        self._channel.left(early=left)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _plan(self, state: UnitState, events: Sequence[InboxEvent]) -> tuple[UnitPlan, UnitState]:
        # Nothing is staged ahead: ranks answer a pull at the boundary that the leader orders, and the counters come later anyway.
        return plan_boundary(state, events, self._table, most_at_once(self._step_seconds), reads_ahead=False)

    def _decide(self) -> None:
        events, self._events = self._events, []
        generation = self._schedule.state.generation
        decided = self._schedule.boundary(events, self._received.waiting(self._schedule.ordered))
        self._warn_of_restart(generation, self._schedule.state.generation)
        self._dealer.follow(decided.work, self._schedule.state.generation, over=self._schedule.last is not None)
        for drop in decided.dropped:
            if drop.rank == 0:
                self._drop(drop.fragment, drop.version)
            else:
                wire = messages.version_to_wire(drop.version, self._incarnations.name)
                self._channel.say(FromLeader(drop=ranks_pb2.Drop(fragment=drop.fragment, version=wire)), drop.rank)
        self._say_counted(decided.counted)
        steps_ahead = ahead(self._step_seconds)
        # Before the release, because the released steps need batches.
        self._deal(steps_ahead)
        most = self._settled.most_steps(self._dealer.dealt) if self._shards else None
        released = [] if self._peers.awaited else self._schedule.release(self.step_count, steps_ahead, most)
        for order in [*decided.orders, *released]:
            self._channel.say(FromLeader(order=messages.order_to_wire(order, self._incarnations.name)))
            self._cursor.put(order)
        reached = self._reached()
        if reached.step != self._reported:
            self._reported = reached.step
            self._report(reached, self._step_seconds, self._schedule.counts.loss)
        elif decided.repeat_progress:
            self._report(reached)

    def ask_for_work(self, batch_size: int, batches: int | None, ahead: int) -> None:
        self._shards = batches is not None
        self.link.set_initial_request((batches or AHEAD_BATCHES + ahead) * batch_size * self._data.of)
        seconds = self._step_seconds / self._per_step
        self._dealer.ask(seconds, batches, ahead, lambda samples: self.link.want(self._generation, samples))

    def _deal(self, steps_ahead: int) -> None:
        """Deal out batches or shards for the next steps, so that no rank has to wait for them."""
        self._dealer.deal(self._batch_size * self._data.of, lambda: self._too_few(steps_ahead))

    def _deal_more(self, batches: int) -> None:
        """Deal more batches. Runs on the channel's thread, because the training thread may wait in a collective for the rank that wants
        them."""
        self._dealer.want(batches)
        self._channel.send()

    def _too_few(self, steps_ahead: int) -> bool:
        if self._shards:
            return self._settled.most_steps(self._dealer.dealt) < self.step_count + 2 + steps_ahead
        return len(self._dealt) < (steps_ahead + 1) * self._per_step

    def _give(self, batch: Ranges) -> None:
        self._channel.say(FromLeader(deal=messages.deal_to_wire(batch, self._taken)))
        self._dealt.append(batch)

    def take(self, count: int) -> NDArray[np.int64] | None:
        self._batch_size = count
        self._deal(ahead(self._step_seconds))
        last = self._schedule.last
        if not self._dealt and last is not None and self._cut is None and self._in_step:
            # There are no more samples, so no rank can finish its step. The step ends here, on all of them.
            self._cut_short(last)
        self._channel.send()
        if self._shards and self._cut is None and self._settled.most_steps(self._dealer.dealt) < self._schedule.state.step:
            return None  # another rank might have no shard for a released step, while this one waits for it in a collective
        return super().take(count)

    def _cut_short(self, last: Last) -> None:
        """Let all ranks end as soon as they have no batch left, even within a step."""
        self._cut = last
        self._channel.say(FromLeader(cut=messages.order_to_wire(Order(self._cursor.step, last), self._incarnations.name)))

    def _order_to_take(self, action: TakeState) -> None:
        """Order all ranks to take the copy that they have, before the first step. The order is sent at once, because this rank then waits
        for the others in the collectives of the adoption."""
        self._channel.say(FromLeader(order=messages.order_to_wire(Order(self._cursor.step, action), self._incarnations.name)))
        self._channel.send()
        self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, LAST) and self._cut is None:
            # A rank in an earlier step that wants more batches for it than this rank took would wait for ever. The cut is sent at once,
            # because this rank may then wait for the others in a collective.
            self._cut_short(action)
            self._channel.send()
        super()._carry_out(action)

    def _say_counted(self, ready: Sequence[PushCounts]) -> None:
        for counted in ready:
            self._channel.say(FromLeader(counted=messages.counted_to_wire(counted)))
            self._read_outs.count(counted)

    def _reached(self) -> UnitState:
        """Return the unit's counters after the last local step that all ranks have counted."""
        return self._schedule.counts.reached(replace(self._schedule.state, feeds_itself=self._feeds_itself))

    # --- hearing and telling ------------------------------------------------------------------------------------------

    def _hear_syncer(self, event: InboxEvent) -> None:
        self._events.append(event)

    def _hear_refusal(self, event: RefusedForGood) -> None:
        self._events.append(event)  # the plan then orders all ranks to quit with its status

    def _hear_ranks(self) -> None:
        reports, self._untranslated = self._untranslated, []
        for rank, message in self._channel.heard():
            match message.WhichOneof("message"):
                case "version_received":
                    reports.append((rank, message.version_received))
                case "stepped":
                    stepped = message.stepped
                    self._schedule.stepped(rank, stepped.tokens, stepped.loss)
                    self._settled.stepped(rank, stepped.settled if stepped.HasField("settled") else None)
                case "reads":
                    self._compare_data(rank, message.reads.data)
                case "draining":
                    self._schedule.drain()
        for rank, report in reports:
            epoch = self._incarnations.known(report.version.incarnation)
            if epoch is None:
                self._untranslated.append((rank, report))
            else:
                fragment = messages.checked(report.fragment, len(self._model.names))
                self._schedule.received(rank, fragment, Version(epoch, report.version.t))
        self._count_trained()

    def _tell(self, fragment: int, version: Version) -> None:
        self._schedule.received(0, fragment, version)

    def _tell_step(self, tokens: int, loss: float, batches: int | None) -> None:
        self._per_step = max(1, batches or 1)
        self._feeds_itself = batches is None
        self._settled.stepped(0, batches)
        self._schedule.stepped(0, tokens, loss)
        self._count_trained()

    def _count_trained(self) -> None:
        for count in self._settled.ready(shards=self._shards):
            self._schedule.trained(self._dealer.settle(count))

    def _tell_data(self, data: str) -> None:
        self._compare_data(0, data)

    def _compare_data(self, rank: int, data: str) -> None:
        """Compare a rank's `data` with that of the others for the same loop. Ranks need not begin a loop at the same time."""
        own = self._data_said[rank]
        own.append(data)
        for other, loops in enumerate(self._data_said):
            if len(loops) >= len(own) and data and loops[len(own) - 1] not in ("", data):
                raise LoopError(
                    f"{self._channel.me.name(rank)} takes sequence numbers for {data}, and {self._channel.me.name(other)} for "
                    f"{loops[len(own) - 1]}: all ranks give the same samples, seed and number of shards"
                )

    def _tell_drain(self) -> None:
        self._schedule.drain()
