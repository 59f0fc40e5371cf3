"""[rejoin-12B] A unit of 12 billion parameters takes the state of a peer over 10 Gbit/s, on virtual time.

What decides is the program's: the donor's share of each step, the queue before its link, and what the taker leaves out because it has
adopted newer parameters. The donor's copy to the host, its link and the steps of both are times on a clock. Of the values only the sizes
exist. `value`: the time of the copy over that of two bare copies and H steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, deal, wholes
from diloco.contract import learner_identity
from diloco.learner.store import Float32Array
from diloco.protocol.diloco_pb2 import Give, StateWanted
from diloco.protocol.incoming_state import ArraysReceived
from diloco.protocol.state_parts import PieceArray, cut
from diloco.recovery.adopted_versions import AdoptedVersions
from diloco.recovery.copying import CopyDone, CopyEvent
from diloco.recovery.process_copy import ProcessCopy
from diloco.recovery.state_donor import StateDonor
from diloco.recovery.state_transfer import StateTransfer

from benchmarks.figure import Figure

LIMIT = 1.0
H = 24
STEP_SECONDS = 4.0
LINK = 1.25e9
"""Bytes a second: 10 Gbit/s, of each process of the donor."""
TO_HOST = 5e9
"""Bytes a second that a donor copies to the host between two steps: a quarter of what a GPU of today does over PCIe."""
ARRAYS = ("", "exp_avg", "exp_avg_sq")
MATRIX = (65536, 4096)
MATRICES, SMOKE_MATRICES = 45, 24
"""45 matrices of 268 million elements are 12.1 billion. Each of the 24 fragments needs one."""
JOB, UNIT = "job", "taker"


class Clock:
    """Seconds since the copy began."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Sizes:
    """An `InnerState` of AdamW without values, only sizes. To stage an array takes its time on the clock."""

    kind = "torch AdamW"
    lent = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.put_bytes = 0

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        return [PieceArray(piece, name, "float32") for piece in pieces for name in ARRAYS]

    def stage(self, arrays: Sequence[PieceArray]) -> Sizes:
        self._clock.now += 4 * sum(array.piece.elements for array in arrays) / TO_HOST
        return self

    def stage_rest(self) -> Sizes:
        return self

    def wait(self) -> Any:
        return {}

    def release(self) -> None:
        """Nothing was kept."""

    def put(self, array: PieceArray, values: Float32Array) -> None:
        self.put_bytes += 4 * array.piece.elements


class Link:
    """A `Copy` of what one process of a donor stages, part after part at the link's speed."""

    begun_at = None

    def __init__(self, transfer: StateTransfer, clock: Clock, none: Float32Array) -> None:
        self.transfer = transfer
        self.bytes = 0
        self.heard_at = 0.0
        self.over = False
        self._clock = clock
        self._none = none
        self._free_at = 0.0
        self._events: deque[CopyEvent] = deque()

    def carry(self, until: float) -> None:
        """Carry what is staged, until this time."""
        self._free_at = max(self._free_at, self._clock.now)
        while self._free_at < until and not self.over and self.transfer.wait(0):
            if (part := self.transfer.take(0)) is None:
                self.over = True
                self._events.append(CopyDone({}))
                return
            self._free_at += part.bytes / LINK
            self.heard_at = self._free_at
            self.bytes += part.bytes
            self.transfer.taken(part)
            if part.arrays:
                self._events.append(ArraysReceived(part.arrays, part.versions, self._none))

    @property
    def ended_at(self) -> float:
        return self._free_at

    def take(self) -> CopyEvent | None:
        return self._events.popleft() if self._events else None

    def cancel(self) -> None:
        """Nothing runs."""


def run(matrices: int, ranks: int) -> dict[str, float]:
    """Copy a model between two units of this many ranks that are sharded alike."""
    clock = Clock()
    layout = Layout(TensorSpec(f"layers.{number:02}.weight", MATRIX) for number in range(matrices))
    fragments = make_fragments(layout, H)
    fragment_of = {tensor.name: index for index, fragment in enumerate(fragments) for tensor in fragment.tensors}
    none = np.zeros(0, np.float32)
    adopted = [AdoptedVersions(len(fragments)), AdoptedVersions(len(fragments))]
    for of_unit in adopted:
        of_unit.epoch, of_unit.versions = 0, list(range(len(fragments)))
    links, copies, states, state_donors = [], [], [], []
    for rank, owned in enumerate(deal(layout.tensors, ranks) if ranks > 1 else [wholes(layout.tensors)]):
        donor, taker = Sizes(clock), Sizes(clock)
        state_donor = StateDonor(layout, donor, owned, donor.stage_rest if rank == 0 else None, JOB, {b"now": 0}.get, clock)  # type: ignore[arg-type]
        state_donor.allow(Give(unit=UNIT, attempt=1, grant=b"g"))
        wanted = StateWanted(job_uid=JOB, unit=UNIT, attempt=1, grant=b"g", fingerprint=layout.fingerprint, inner_state=donor.kind)
        wanted.incarnation, wanted.rank, wanted.without_rest = b"now", rank, rank != 0
        wanted.versions.extend(adopted[1].versions)
        link = Link(state_donor.begin(wanted, learner_identity(JOB, UNIT, 1)), clock, none)
        state_donors.append(state_donor)
        links.append(link)
        states.append(taker)
        copies.append(ProcessCopy(link, taker.put, fragment_of, now=clock))  # type: ignore[arg-type]
    ends: list[float] = []
    step, t = 0, len(fragments)
    while len(ends) < ranks:
        step += 1
        begins = clock.now = step * STEP_SECONDS
        for of_unit in adopted:  # an outer step for each local one
            of_unit.versions[t % len(fragments)] = t
        t += 1
        for state_donor in state_donors:
            clock.now = begins  # the ranks read beside each other
            state_donor.at_boundary(adopted[0], STEP_SECONDS, readable=True)
        clock.now = begins
        for link, copy in zip(links, copies, strict=True):
            was_over = link.over
            link.carry(begins + STEP_SECONDS)
            copy.go_on(adopted[1])
            if link.over and not was_over:
                ends.append(link.ended_at)
    size = 4 * layout.size
    bare = 3 * size / ranks / LINK
    return {
        "seconds": max(ends),
        "bare_seconds": bare,
        "of_limit": max(ends) / (2 * bare + H * STEP_SECONDS),
        "put": sum(state.put_bytes for state in states) / (3 * size),
        "moments_steps": max(ends) / STEP_SECONDS,
        "parameters": float(layout.size),
        "parts": float(len(cut(wholes(layout.tensors)))),
    }


def measure(*, smoke: bool) -> Iterator[Figure]:
    """Measure one process over one link, and eight ranks with a link each."""
    matrices = SMOKE_MATRICES if smoke else MATRICES
    alone, eight = run(matrices, 1), run(matrices, 8)
    worst = max(alone["of_limit"], eight["of_limit"])
    details = {name: round(value, 3) for name, value in alone.items()}
    details |= {f"ranks8_{name}": round(eight[name], 3) for name in ("seconds", "of_limit", "moments_steps")}
    yield Figure("rejoin-12B", worst, "seconds ÷ two bare copies and H steps", LIMIT, worst <= LIMIT, 1, details)
