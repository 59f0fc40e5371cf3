"""A job of three learners and two fragments, one event at a time: whoever drives it chooses what is delivered, lost, sent twice or killed.

The machines are those of a real job: `Core` with its shard, commit records and `Redo`, `Donors`, `Taker`, `AdoptedVersions`. What is made
here lies between them: streams in order, of which each may break; fences; a volume that holds what was made durable.

`check` and the events raise `Broken` for an invariant that does not hold. A `Defect` breaks one on purpose.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace

import numpy as np
from builders.core import InlineCore, Push, a_job, a_layout
from builders.explored_defects import Defect, broken
from builders.explored_process import FRAGMENTS, PLACES, Answer, Array, Process, Version
from builders.explored_recovery import ExploredRecovery
from diloco.algorithm.commit import Commit, Redo, commit_of
from diloco.algorithm.effects import Broadcast, Close, ContributionRejected, Effect, Pull
from diloco.algorithm.events import Computed, Metadata, Offer, Tick
from diloco.algorithm.shard import Update
from diloco.algorithm.state import CoreState
from diloco.contract import Grace
from diloco.recovery.copying import CopyFailed

UNITS = ("a", "b", "c")
STEPS, INTERVAL = 6, 2
ROUNDS = 200


class ExploredJob:
    """Syncer, streams, volume and learners. Every public method but `check` and `finish` is one event, and may come at any time."""

    def __init__(self, defect: Defect | None = None) -> None:
        self.now = 0.0
        self.training = a_job(steps=STEPS, sync_interval=INTERVAL, fragments=FRAGMENTS, grace=Grace(max_steps=0.0, safety_factor=0.8))
        self.layout = a_layout(FRAGMENTS, PLACES)
        self.core = InlineCore(self.layout, self.training)
        assert self.core.begin([np.zeros(PLACES, np.float32) for _ in range(FRAGMENTS)]) is None
        self.up: dict[str, deque[Metadata | Answer]] = {unit: deque() for unit in UNITS}
        self.down: dict[str, deque[Pull | Version]] = {unit: deque() for unit in UNITS}
        self.processes = {unit: self._process(unit, 1) for unit in UNITS}
        self._defect = defect
        self._members: dict[str, str] = {}
        """By unit the session of its stream, as the syncer has it."""
        self.recovery = ExploredRecovery(self.processes, self.layout, INTERVAL, lambda: self.now)
        self._snapshot: CoreState = self.core.state()
        self._tape: list[tuple[Commit, Array, bytes]] = []
        """What is durable since the snapshot: the record, the merged outer gradient, the bytes of the result."""
        self._durable = {(p, 0) for p in range(FRAGMENTS)}
        """Fragment and version of all that was made durable."""
        self._computed: deque[tuple[Close, Update, Commit]] = deque()
        self._sent: dict[tuple[str, int], Answer] = {}
        """By session and outer step what a process answered first."""
        self._adopted: dict[tuple[int, int], Array] = {}
        self._place = itertools.count()
        for unit in UNITS:
            self.join(unit)

    def _process(self, unit: str, attempt: int) -> Process:
        return Process(unit, attempt, lambda: self.now, lambda p, t: self._adopted[p, t])

    # --- learners and their streams -----------------------------------------------------------------------------------

    def join(self, unit: str) -> None:
        """The unit's newest process opens a stream, which ends that of an earlier one. It is sent what it does not hold."""
        process = self.processes[unit]
        if process.joined:
            return
        self.down[unit].clear()
        self.up[unit].clear()
        if self._members.get(unit) != process.session:
            self.recovery.ends(unit)
        process.joined, self._members[unit] = True, process.session
        for p in range(FRAGMENTS):
            if process.adopted.versions[p] != self.core.version(p):
                value = self.core.value(p)
                if self._defect is Defect.ROUNDED:
                    value = value.astype(np.float16).astype(np.float32)
                self.down[unit].append(Version(p, self.core.version(p), value))
        self.core.join(unit, self.now)
        self._settle()

    def cut(self, unit: str) -> None:
        """The stream breaks: what is on its way is lost, and the syncer knows."""
        self.up[unit].clear()
        self.down[unit].clear()
        self.processes[unit].joined = False
        if self._members.pop(unit, None) is not None:
            self.recovery.ends(unit)
            self.core.leave(unit, self.now)
        self._settle()

    def kill(self, unit: str) -> None:
        """The process dies. What it has sent is on its way, and the syncer knows nothing until the next attempt joins."""
        for taker in self.processes.values():
            if taker.copy is not None and taker.copy.donor == unit:
                taker.copy.events.append(CopyFailed("it has died"))
        self.processes[unit] = self._process(unit, self.processes[unit].attempt + 1)

    def step(self, unit: str) -> None:
        """A local step, if the unit may train."""
        self.now += 1.0
        if self.processes[unit].ready:
            self.up[unit].append(self.processes[unit].step(next(self._place) % PLACES))

    def receive(self, unit: str) -> None:
        """The learner takes what is next on its stream."""
        process, stream = self.processes[unit], self.down[unit]
        if not stream or not process.joined:
            return
        message = stream.pop() if self._defect is Defect.NO_LANES else stream.popleft()
        if isinstance(message, Pull):
            if (answer := process.answer(message)) is not None:
                self._sent.setdefault((process.session, message.t), answer)
                self.up[unit].append(answer)
            return
        if message.t < process.adopted.versions[message.p]:
            raise broken(f"order: {unit} gets version {message.t} of fragment {message.p} after {process.adopted.versions[message.p]}")
        if self._adopted.setdefault((message.p, message.t), message.value).tobytes() != message.value.tobytes():
            raise broken(f"equal bytes: {unit} adopts other bytes of version {message.t} of fragment {message.p} than another unit did")
        process.adopt(message)

    def repeat(self, unit: str) -> None:
        """The newest answer on the way is sent twice."""
        if self.up[unit] and isinstance(self.up[unit][-1], Answer):
            self.up[unit].append(self.up[unit][-1])

    def deliver(self, unit: str) -> None:
        """The syncer takes what is next on the unit's stream."""
        if not self.up[unit]:
            return
        message = self.up[unit].popleft()
        if unit not in self._members:
            return
        if isinstance(message, Metadata):
            self.core.progress(unit, message, self.now)
        else:
            offer = message.offer if self._defect is not Defect.ANY_PULL else self._awaited(unit, message.offer)
            if self.core.push(unit, Push(offer, message.value.tobytes()), self.now) is None and message.session != self._members[unit]:
                raise broken(f"once: an answer of {message.session} counts after {self._members[unit]} has joined")
        self._settle()

    def _awaited(self, unit: str, offer: Offer) -> Offer:
        """Return the offer as one to the newest pull that awaits the unit."""
        offers = [replace(offer, t=t, fragment=p) for t in range(STEPS, 0, -1) for p in range(FRAGMENTS)]
        return next((one for one in offers if self.core.coordinator.awaits(unit, one)), offer)

    # --- the syncer and its volume ------------------------------------------------------------------------------------

    def write(self) -> None:
        """The oldest merge becomes durable, and only then takes its place."""
        if not self._computed:
            return
        close, update, commit = self._computed.popleft()
        self._tape.append((commit, update.gradient.copy(), update.value.tobytes()))
        self._durable.add((close.fragment, close.t))
        if self._defect not in (Defect.BROADCAST_FIRST, Defect.FORGOTTEN):
            self._install(close, update)
        self._settle()

    def save(self) -> None:
        """A snapshot becomes durable; the records before it are not needed any more."""
        if not self._computed:
            self._snapshot = self.core.state()
            self._tape.clear()

    def crash(self) -> None:
        """The syncer dies, and comes back with what is durable. All streams break; learners keep what they hold."""
        redo = Redo(self._snapshot, self.training)
        if self._defect is Defect.LOST_RECORD:
            del self._tape[-1:]
        for commit, gradient, result in self._tape:
            if redo.repeat(commit, gradient).value.tobytes() != result:
                raise broken(f"replay: the merge of outer step {commit.t} gives other bytes than it gave then")
        self._computed.clear()
        self._sent.clear()  # exchanges that were open are launched again, as the same outer steps
        self._members.clear()
        self.core = InlineCore(self.layout, self.training, redo.state())
        self.recovery.restart()
        for unit in UNITS:
            self.processes[unit].joined = False
            self.up[unit].clear()
            self.down[unit].clear()

    def _settle(self) -> None:
        while effects := self.core.take(Tick(self.now)):
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Pull():
                for unit in self._members.keys() & set(effect.units):
                    self.down[unit].append(effect)
            case Close():
                self._close(effect)
            case Broadcast():
                for unit in self._members:
                    self.down[unit].append(Version(effect.fragment, effect.t, self.core.value(effect.fragment)))
            case ContributionRejected():
                self.cut(effect.unit)

    def _close(self, close: Close) -> None:
        update = self.core.compute(close)
        assert update is not None, "all that learners send is finite"
        commit = commit_of(self.core.coordinator.ordered(close.t), close, update.cosine)
        self._compare(commit, update)
        self._computed.append((close, update, commit))
        if self._defect is Defect.BROADCAST_FIRST:
            self._install(close, update)

    def _compare(self, commit: Commit, update: Update) -> None:
        """A merge against the weighted mean of what its units answered to this very pull: an independent count."""
        total = np.zeros(PLACES)
        for given in commit.given.values():
            answer = self._sent.get((given.marks.session, commit.t))
            if answer is None:
                raise broken(f"once: the merge of outer step {commit.t} has what {given.marks.session} answered to another pull")
            total += given.weight * answer.value
        if not np.allclose(total / sum(given.weight for given in commit.given.values()), update.value, atol=1e-4):
            raise broken(f"once: the merge of outer step {commit.t} is not the mean of one answer of each of its units")

    def _install(self, close: Close, update: Update) -> None:
        self.core.shard.hold_update(close, update)
        for effect in self.core.take(Computed(self.now, close.t, finite=True)):
            self._carry_out(effect)

    # --- the state of a peer ------------------------------------------------------------------------------------------

    def name_donors(self) -> None:
        """The syncer hears how far each taker is, and names donors that are free."""
        self.recovery.name_donors(self.core.t)

    def give(self, unit: str) -> None:
        """The donor of this unit stages its next part, once it is as new as the taker; at last the small rest."""
        self.recovery.give(unit)

    def take(self, unit: str) -> None:
        """The next boundary of a taker."""
        self.processes[unit].boundary()

    # --- invariants ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise Broken if one of them does not hold now."""
        for unit, process in self.processes.items():
            for p, t in enumerate(process.adopted.versions):
                if t >= 0 and (p, t) not in self._durable:
                    raise broken(f"durable: {unit} holds version {t} of fragment {p}, of which there is no record")
                if t > self.core.version(p):
                    raise broken(f"no step lost: {unit} holds version {t} of fragment {p}, and the syncer {self.core.version(p)}")
                if process.content[p] < t:
                    raise broken(f"no older: {unit} has parameters of version {process.content[p]} and had adopted version {t}")

    def finish(self) -> None:
        """Let all go well from now on: the job must reach its last step, and every unit the last versions. Raises Broken."""
        for _ in range(ROUNDS):
            for unit in UNITS:
                self.join(unit)
                self.step(unit)
                while self.up[unit] or self.down[unit]:
                    self.deliver(unit)
                    self.receive(unit)
                self.give(unit)
                self.take(unit)
            self.name_donors()
            while self._computed:
                self.write()
            self.check()
            if self.core.done and not any(self.down.values()):
                break
        else:
            raise broken(f"progress: the job is at outer step {self.core.t} of {STEPS} after {ROUNDS} rounds in which nothing failed")
        for unit, process in self.processes.items():
            if process.adopted.versions != [self.core.version(p) for p in range(FRAGMENTS)]:
                raise broken(f"progress: {unit} ends with versions {process.adopted.versions}")
