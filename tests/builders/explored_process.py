"""The learners of an explored job, and what is on its way between them and the syncer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from builders.momentum_learner import MomentumState
from diloco.algorithm.codec import Coding
from diloco.algorithm.effects import Pull
from diloco.algorithm.events import Marks, Metadata, Offer
from diloco.learner.peers import Model
from diloco.protocol.diloco_pb2 import Donor, Recovery
from diloco.protocol.incoming_state import ArraysReceived
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import CopyEvent
from diloco.recovery.process_copy import ProcessCopy
from diloco.recovery.taking import Taker
from numpy.typing import NDArray

Array = NDArray[np.float32]

FRAGMENTS = 2
PLACES = 512
"""Local steps of all processes of one run, at most."""
TOKENS = 100
"""Tokens of a local step."""


@dataclass(frozen=True, slots=True)
class Version:
    """A fragment on its way to a learner."""

    p: int
    t: int
    value: Array = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """To a pull, from one process."""

    session: str
    offer: Offer
    value: Array = field(repr=False)


@dataclass
class Copying:
    """The way of a donor's state to a taker; to the taker a `Copy`."""

    donor: str
    heard_at: float
    events: deque[CopyEvent] = field(default_factory=deque)
    parts: int = 0
    begun_at: float | None = None
    bytes: int = 0

    def take(self) -> CopyEvent | None:
        return self.events.popleft() if self.events else None

    def cancel(self) -> None:
        self.events.clear()


class Process:
    """One attempt of a learner. Each local step adds 1 at a place of its own in every fragment."""

    def __init__(self, unit: str, attempt: int, now: Callable[[], float], adopted: Callable[[int, int], Array]) -> None:
        """`adopted`: the value of a version of a fragment, which it has adopted before."""
        self.unit, self.attempt, self.session = unit, attempt, f"{unit}/{attempt}"
        self.values = {f"w{p}": np.full(PLACES, -1.0, np.float32) for p in range(FRAGMENTS)}  # its own, until it has the job's
        self.state = MomentumState(self.values)
        self.adopted = AdoptedVersions(FRAGMENTS)
        self.since = [0] * FRAGMENTS
        self.steps = self.seen = 0
        self.joined = False
        self.content = [-1] * FRAGMENTS
        """Per fragment of which version its parameters are, beside the local steps since."""
        self.copy: Copying | None = None
        self._now, self._adopted = now, adopted
        self.begin, self.finish = self.state.begin, self.state.finish
        model = Model(self._take_parameters, lambda: None)
        self.taker = Taker(self, model, lambda: None, lambda: None, now(), now)  # type: ignore[arg-type]

    @property
    def ready(self) -> bool:
        """It has all parameters, and awaits nothing of a peer."""
        return self.joined and min(self.adopted.versions) >= 0 and self.taker.over

    @property
    def copying(self) -> bool:
        return self.taker.message.phase == Recovery.COPYING

    def step(self, place: int) -> Metadata:
        for p in range(FRAGMENTS):
            self.values[f"w{p}"][place] += 1.0
            self.state.momentum[f"w{p}"][place] += 1.0
        self.steps += 1
        self.since = [count + 1 for count in self.since]
        return Metadata(self.steps, tuple(self.since), tuple(TOKENS * n for n in self.since), 1.0)

    def answer(self, pull: Pull) -> Answer | None:
        p = pull.fragment
        if not self.since[p] or not self.ready:
            return None
        marks = Marks(self.session, 8 * self.steps, TOKENS * self.steps, self.steps, self.seen)
        offer = Offer(p, pull.t, Coding.FLOAT32, self.adopted.versions[p], self.since[p], TOKENS * self.since[p], marks)
        return Answer(self.session, offer, self.values[f"w{p}"].copy())

    def adopt(self, version: Version) -> None:
        p = version.p
        self.values[f"w{p}"][:] = version.value
        self.since[p], self.adopted.versions[p], self.content[p] = 0, version.t, version.t
        self.seen = max(self.seen, version.t)
        if min(self.adopted.versions) >= 0 and not self.taker.begun:
            first = self.attempt == 1
            self.taker.begin(0.0, 0.0, wanted=not first, why="it is the first attempt" if first else "")

    def boundary(self) -> None:
        """Take what has come of a copy."""
        events = list(self.copy.events) if self.copy is not None else []
        self.state.put_arrays = []
        self.taker.boundary(self.adopted, restarted=False)
        put = {array.piece.tensor for array in self.state.put_arrays if not array.name}
        for part in events:
            if isinstance(part, ArraysReceived) and (name := part.arrays[0].piece.tensor) in put:
                self.content[int(name[1:])] = part.versions[int(name[1:])]
        if not self.copying:
            self.copy = None

    def copy_of_peer(self, donor: Donor, on_arrival: Callable[[], None]) -> ProcessCopy:
        self.copy = Copying(donor.unit, self._now())
        return ProcessCopy(self.copy, self.state.put, {f"w{p}": p for p in range(FRAGMENTS)}, now=self._now)  # type: ignore[arg-type]

    def _take_parameters(self) -> None:
        for p, t in enumerate(self.adopted.versions):
            self.values[f"w{p}"][:] = self._adopted(p, t)
            self.content[p] = t
