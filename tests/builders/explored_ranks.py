"""Units of several ranks that give their states to each other, one event at a time: whoever drives them chooses what comes next.

The machines are those of a real job: both kinds of members, `StateOfUnit`, `StateOfRank`, `PeersOfUnit`, `Taker`, `StateDonor` and the
messages of both wires. What is made here lies between them. Where a leader waits for its ranks, these do meanwhile what they have to.

`check` and the events raise `Broken` for an invariant that does not hold.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
from builders.exchange import job_file
from builders.explored_defects import broken
from builders.explored_rank import FRAGMENTS, LAYOUT, PROCESS, VERSION, Inline, Rank
from builders.local_process import LocalCopy, LocalProcess
from diloco.protocol.diloco_pb2 import Donor, Give, Recovery
from diloco.protocol.incoming_state import ArraysReceived
from diloco.ranks.following import FollowerMember
from diloco.ranks.leading import LeaderMember
from diloco.ranks.orders import OrderError
from diloco.ranks.ranks_pb2 import FromLeader, StateOrder, StateSaid, ToLeader
from diloco.ranks.state_of_rank import StateOfRank
from diloco.ranks.state_of_unit import StateOfUnit
from diloco.recovery.peers import PeersOfUnit
from diloco.recovery.state_donor import StateDonor
from diloco.recovery.state_transfer import Refused

RANKS = {"a": 1, "b": 2, "c": 3}
"""Of each unit."""
ROUNDS = 60
PATIENCE = 200
"""Deliveries without which a leader waits for ever."""


class Unit:
    """One attempt of a unit."""

    def __init__(self, job: ExploredUnits, name: str, attempt: int, process: int) -> None:
        self.job, self.name, self.attempt, self.process = job, name, attempt, process
        count = RANKS[name]
        self.down: list[deque[bytes]] = [deque() for _ in range(count)]
        self.up: list[deque[bytes]] = [deque() for _ in range(count)]
        self.ranks = [Rank(rank, count, process, self._sends(rank)) for rank in range(count)]
        self.taken: list[str] = [""] * count
        """Per rank whose state it has taken."""
        pieces = [rank.store.pieces for rank in self.ranks]
        self.processes = [self._process(rank) for rank in self.ranks]
        leader = self.ranks[0]
        self.state = StateOfUnit(self.processes[0], leader.portions, self._order, pieces, pieces)
        self.state._wait = self._wait  # type: ignore[method-assign]
        self.state.leader._sending = Inline()  # type: ignore[assignment]
        leader.channel.state_said = self.state.said
        self.peers = ExploredPeers(self)
        parts = leader.parts(self.peers)
        first = LeaderMember(parts, leader.data, leader.channel, leader.incarnations, range(count), self.state)  # type: ignore[arg-type]
        self.members: list[Any] = [first]
        for rank in self.ranks[1:]:
            of_rank = StateOfRank(self.processes[rank.rank], rank.portions, self._answering(rank), lambda: None)
            of_rank._sending = Inline()  # type: ignore[assignment]
            self.members.append(FollowerMember(rank.parts(), rank.data, rank.channel, rank.incarnations, of_rank))  # type: ignore[arg-type]
        for rank, member in zip(self.ranks, self.members, strict=True):
            rank.welcomed(job.t)
            rank.stream.extend(enumerate(job.versions))
            self._note_taking(rank.rank, member)

    def _process(self, rank: Rank) -> LocalProcess:
        return LocalProcess(
            LAYOUT,
            FRAGMENTS,
            rank.state,
            rank.store.pieces,
            rank.incarnations,
            self._state_donors,
            unit=self.name,
            attempt=self.attempt,
            rank=rank.rank,
        )

    def _state_donors(self, donor: Donor) -> list[StateDonor]:
        state_donor = self.job.units[donor.unit]
        if state_donor.attempt != donor.attempt:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "another attempt serves there")
        # The syncer's word of the taker comes to all ranks of the donor within the seconds for which they wait for it.
        for process in state_donor.processes:
            process.state_donor.allow(Give(unit=self.name, attempt=self.attempt, grant=donor.grant))
        return [process.state_donor for process in state_donor.processes]

    @property
    def copies(self) -> list[LocalCopy]:
        """The copies under way, of all ranks."""
        return [process.copies[-1] for process in self.processes if process.copies and not process.copies[-1].over]

    def send(self, rank: int) -> None:
        """The next parts that a rank waits for come."""
        copies = self.processes[rank].copies
        if copies:
            copies[-1].looks_at = self._look_at
            copies[-1].send()

    def _look_at(self, received: ArraysReceived) -> None:
        start, of = 0, {}
        for array in received.arrays:
            of[array.piece.tensor, array.name] = received.values[start : start + array.piece.elements]
            start += array.piece.elements
        donor_ranks = self.job.units[self.taker._donor.unit].ranks if self.taker._donor is not None else []
        fragment_of = {tensor.name: index for index, fragment in enumerate(FRAGMENTS) for tensor in fragment.tensors}
        for tensor in {name for name, _ in of}:
            parameters, moments = of[tensor, ""], of[tensor, "moment"]
            said = received.versions[fragment_of[tensor]]
            if (held := int(parameters.min()) // VERSION) < said:
                raise broken(f"as said: {self.name} is given version {held} of {tensor}, as {said}")
            seen: set[tuple[float, float]] = set().union(*(rank.seen for rank in donor_ranks))
            if differing := set(zip(parameters.tolist(), moments.tolist(), strict=True)) - seen:
                raise broken(f"one step: {self.name} is given of {tensor} what no rank had at one boundary: {differing}")

    @property
    def taker(self) -> Any:
        return self.peers._taker

    @property
    def trains(self) -> bool:
        return all(rank.state.steps and member.step_count for rank, member in zip(self.ranks, self.members, strict=True))

    # --- the side channel -----------------------------------------------------------------------------------------------

    def _sends(self, rank: int) -> Callable[[bytes, int | None], None]:
        def send(message: bytes, to: int | None) -> None:
            if rank:
                self.up[rank].append(message)
                return
            for other in range(1, len(self.down)):
                if to in (None, other):
                    self.down[other].append(message)

        return send

    def _order(self, rank: int, order: StateOrder) -> None:
        self.ranks[0].channel.say(FromLeader(state=order), rank)
        self.ranks[0].channel.send()

    def _answering(self, rank: Rank) -> Callable[[StateSaid], None]:
        def say(said: StateSaid) -> None:
            rank.channel.say(ToLeader(state=said))
            rank.channel.send()

        return say

    def deliver(self, rank: int) -> bool:
        """The next message from and to this rank. False: there is none."""
        moved = False
        if self.down[rank]:
            self.ranks[rank].channel.mail.append((0, FromLeader.FromString(self.down[rank].popleft())))
            moved = True
        if self.up[rank]:
            message = ToLeader.FromString(self.up[rank].popleft())
            if message.WhichOneof("message") == "state":
                self.ranks[0].channel.state_said(rank, message.state)
            else:
                self.ranks[0].channel.mail.append((rank, message))
            moved = True
        return moved

    def _wait(self, come: Callable[[], bool], what: str) -> None:
        for turn in range(PATIENCE):
            if come():
                return
            for rank in sorted(range(1, len(self.ranks)), key=lambda rank: (rank + turn) % 2):
                if self.deliver(rank):
                    self.boundary(rank)
        raise broken(f"progress: the leader of {self.name} waits for ever for a rank that {what}")

    # --- what a rank does -----------------------------------------------------------------------------------------------

    def moves(self, rank: int, *, receives: bool) -> None:
        """A rank does a step if it may, and comes to its next boundary."""
        if receives:
            self.ranks[rank].receive()
        member = self.members[rank]
        if member.may_step:
            if self.peers.copies:
                raise broken(f"first: rank {rank} of {self.name} trains while a copy comes")
            if self.taken != [self.taken[0]] * len(self.taken):
                raise broken(f"alike: ranks of {self.name} train with the states of {self.taken}")
            self.ranks[rank].state.step()
            member.stepped(1, None, 0.0, None)
            self.ranks[rank].note()
        self.boundary(rank)

    def boundary(self, rank: int) -> None:
        try:
            self.members[rank].boundary()
        except (RuntimeError, OrderError) as error:
            raise broken(f"alike: rank {rank} of {self.name}: {error}") from error
        self.ranks[rank].note()

    def _note_taking(self, rank: int, member: Any) -> None:
        """Look at what a rank has taken, as soon as it has."""
        state = member._state
        finish = state.finish

        def finishing() -> None:
            finish()
            donor = self.taker._donor
            self.taken[rank] = donor.unit if donor is not None else self.taken[0]
            moments = np.concatenate([each.ravel() for each in self.ranks[rank].state.moments.values()])
            sources = set((moments // PROCESS).astype(int).tolist())
            if len(sources) != 1 or not moments.all():
                raise broken(f"whole: rank {rank} of {self.name} has taken a state of which parts are of {sources}")

        state.finish = finishing


class ExploredPeers(PeersOfUnit):
    """Without a connection."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._process, self._state = unit.processes[0], unit.state
        self._changed, self._news = threading.Condition(), False
        self._named, self._taker = deque(maxlen=1), None
        self._joined_at, self._start_seconds, self._first_step_from = unit.job.now, 0.0, None
        self._storer: Any = self
        self._config: Any = SimpleNamespace(unit=unit.name, job=job_file())  # of a job that stores no states
        self._not_stored = self.error = ""
        self._stored_steps = None

    def at_boundary(self, local_step: int, step_seconds: float) -> None:
        """The storer's part."""

    def connect(self, model: Any, tell: Callable[[], None]) -> None:
        super().connect(model, tell)
        assert self._taker is not None
        self._taker._now = lambda: self._unit.job.now

    @property
    def copies(self) -> bool:
        """State comes, or may come."""
        return self._taker is not None and self._taker.begun and not self._taker.over


class ExploredUnits:
    """The syncer and three units. Every public method but `check` and `finish` is one event, and may come at any time."""

    def __init__(self, defect: Callable[[Unit], None] = lambda unit: None) -> None:
        """`defect` breaks each unit that begins."""
        self.now = 0.0
        self.t = 0
        self.versions = [0] * len(FRAGMENTS)
        self._defect = defect
        self._processes = self._grants = 0
        self.units: dict[str, Unit] = {}
        for name in RANKS:
            self._begin(name, 1)

    def _begin(self, name: str, attempt: int) -> None:
        self._processes += 1
        self.units[name] = Unit(self, name, attempt, self._processes)
        self._defect(self.units[name])

    def broadcast(self) -> None:
        """An outer step: a fragment is merged."""
        self.t += 1
        fragment = self.t % len(FRAGMENTS)
        self.versions[fragment] = self.t
        for unit in self.units.values():
            for rank in unit.ranks:
                rank.stream.append((fragment, self.t))

    def deliver(self, unit: str, rank: int) -> None:
        self.units[unit].deliver(rank % RANKS[unit])

    def moves(self, unit: str, rank: int, *, receives: bool) -> None:
        self.now += 0.01
        self.units[unit].moves(rank % RANKS[unit], receives=receives)

    def refuse(self, unit: str, rank: int, what: str) -> None:
        """A rank does not take the next copy."""
        self.units[unit].ranks[rank % RANKS[unit]].state.refuses = what

    def kill(self, unit: str) -> None:
        """A rank dies, and the unit with it; its next attempt begins. What was on its way is lost."""
        gone = self.units[unit]
        for copy in gone.copies:
            copy.cancel()
        for process in gone.processes:
            process.close()
        self._begin(unit, gone.attempt + 1)

    def send(self, unit: str, rank: int) -> None:
        """The next parts that this rank waits for, on their way."""
        self.units[unit].send(rank % RANKS[unit])

    def name_donors(self) -> None:
        """The syncer answers those who want a donor."""
        for name, unit in self.units.items():
            said = unit.taker.message
            if said.phase != Recovery.WANTED or unit.peers._named:
                continue
            able = [one for one in self.units.values() if one is not unit and one.name not in said.failed and one.trains and one.taker.over]
            takers = [other for other in self.units.values() if other is not unit]
            busy = {other.taker.message.unit for other in takers if not other.taker.over}
            busy |= {named.unit for other in takers for named in other.peers._named}
            free = [one for one in able if one.name not in busy]
            if free:
                self._grants += 1
                grant = b"%d" % self._grants
                unit.peers.hear(Donor(round=said.round, unit=free[0].name, attempt=free[0].attempt, grant=grant))
            elif not able:
                unit.peers.hear(Donor(round=said.round, why=f"no unit is left to ask by {name}"))

    def check(self) -> None:
        """Raise Broken if one of the invariants does not hold now."""
        for unit in self.units.values():
            for rank in unit.ranks:
                rank.check()

    def finish(self) -> None:
        """Let all go well from now on: every unit must train. Raises Broken."""
        for _ in range(ROUNDS):
            self.name_donors()
            for name, unit in self.units.items():
                for rank in range(len(unit.ranks)):
                    while unit.deliver(rank):
                        pass
                    self.moves(name, rank, receives=True)
                    self.send(name, rank)
            self.check()
            if all(unit.trains and unit.taker.over for unit in self.units.values()):
                return
        raise broken(f"progress: of the units {[name for name, unit in self.units.items() if not unit.trains]} do not train")
