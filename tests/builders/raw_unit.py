"""A unit of several ranks that sends exactly what a test says. Every rank is a raw stream, and holds nothing but its portions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from builders.raw_learner import RawLearner, Reachable
from diloco.algorithm.codec import Coding, encode, value_of
from diloco.algorithm.cut import value_of_cut
from diloco.algorithm.fragments import pack
from diloco.algorithm.layout import Layout
from diloco.algorithm.pieces import Piece, Portion, deal, portion, whole
from diloco.protocol.diloco_pb2 import Chunk, Pull, Welcome
from diloco.protocol.framing import Transfer
from diloco.protocol.piece_maps import piece_maps
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Owned = list[list[Piece]]
Sharding = Callable[[Layout], Owned]


def dealt(ranks: int) -> Sharding:
    """As DDP: every tensor along its longest axis."""
    return lambda layout: deal(layout.tensors, ranks)


def rows(ranks: int) -> Sharding:
    """As FSDP2: the first axis in equal parts, the last ranks with less or nothing."""

    def cut(layout: Layout) -> Owned:
        owned: Owned = [[] for _ in range(ranks)]
        for spec in layout.tensors:
            part = -(-spec.shape[0] // ranks)
            for rank, start in enumerate(range(0, spec.shape[0], part)):
                size = min(part, spec.shape[0] - start)
                owned[rank].append(Piece(spec.name, (start, *(0,) * (len(spec.shape) - 1)), (size, *spec.shape[1:])))
        return owned

    return cut


def columns(ranks: int) -> Sharding:
    """As tensor parallel: the second axis in equal parts; whole tensors to rank 0 where it cannot be cut."""

    def cut(layout: Layout) -> Owned:
        owned: Owned = [[] for _ in range(ranks)]
        for spec in layout.tensors:
            if len(spec.shape) != 2 or spec.shape[1] % ranks:
                owned[0].append(whole(spec))
                continue
            part = spec.shape[1] // ranks
            for rank in range(ranks):
                owned[rank].append(Piece(spec.name, (0, part * rank), (spec.shape[0], part)))
        return owned

    return cut


def grid(layout: Layout) -> Owned:
    """As FSDP2 with tensor parallel, 2 x 2: both axes in halves."""
    owned: Owned = [[] for _ in range(4)]
    for spec in layout.tensors:
        row, column = (n // 2 for n in spec.shape)
        for rank, (i, j) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            size = (spec.shape[0] - row if i else row, spec.shape[1] - column if j else column)
            owned[rank].append(Piece(spec.name, (i * row, j * column), size))
    return owned


class RawUnit:
    """A unit of as many ranks as its sharding has; None: one process that knows nothing of ranks."""

    def __init__(self, syncer: Reachable, sharding: Sharding | None, unit: str, *, fragments: int = 2, arrays: object = None) -> None:
        self.syncer, self.unit = syncer, unit
        self._arrays, self._fragments = arrays, fragments
        self.leader = self._stream()
        layout = self.leader.layout
        self.fragments = self.leader.fragments
        self.owned: Owned | None = sharding(layout) if sharding is not None else None
        self.ranks = len(self.owned or [[]])
        self.streams = [self.leader, *(self._stream() for _ in range(1, self.ranks))]
        self.portions: list[list[Portion]] = [
            [portion(fragment, of_rank) for fragment in self.fragments] for of_rank in self.owned or [list(map(whole, layout.tensors))]
        ]
        self.held: list[dict[int, tuple[int, Floats]]] = [{} for _ in range(self.ranks)]
        """Per rank and fragment: version, and values of the portion."""
        self.steps = 0
        """Local steps that were reported."""
        self.pushed = 0
        """Bytes of payload."""
        self.received = 0

    def __enter__(self) -> RawUnit:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            stream.cut()

    def _stream(self) -> RawLearner:
        return RawLearner(self.syncer, self._arrays, self._fragments, unit=self.unit)  # type: ignore[arg-type]

    # --- joining ------------------------------------------------------------------------------------------------------

    def join_leader(self, **changes: object) -> Welcome:
        of_ranks: dict[str, object] = {}
        if self.owned is not None:
            of_ranks = {"ranks": self.ranks, "owned": piece_maps(self.leader.layout, self.owned)}
        welcome: Welcome = self.leader.hello(**(of_ranks | changes)).hear("welcome").welcome
        self.leader_incarnation = welcome.incarnation
        return welcome

    def hello_of(self, rank: int, **changes: object) -> RawLearner:
        fields: dict[str, object] = {"rank": rank, "ranks": self.ranks, "process": b"p%d" % rank, "tensors": [], "fingerprint": ""}
        return self.streams[rank].hello(**(fields | changes))

    def join_rank(self, rank: int, **changes: object) -> Welcome:
        return self.hello_of(rank, **changes).hear("welcome").welcome

    def join(self) -> RawUnit:
        """All ranks, the leader first."""
        self.join_leader()
        for rank in range(1, self.ranks):
            self.join_rank(rank)
        return self

    def reopen(self, rank: int) -> RawLearner:
        """A new stream in the place of a rank's former one."""
        self.streams[rank].cut()
        self.streams[rank] = self._stream()
        return self.streams[rank]

    def seed(self) -> RawUnit:
        """Each rank sends its portions, and holds version 0 of them."""
        for rank, stream in enumerate(self.streams):
            for p, own in enumerate(self.portions[rank]):
                value = own.cut(pack(own.fragment, stream.arrays))
                self.held[rank][p] = 0, value
                if own.size:
                    stream.transfer(Chunk(kind=Chunk.SEED, fragment=p, coding=Chunk.FLOAT32), value.tobytes())
        return self

    # --- exchanging ---------------------------------------------------------------------------------------------------

    def step(self, number: int, step_seconds: float = 20.0) -> None:
        """See `RawLearner.step`."""
        self.steps = number
        self.leader.step(number, step_seconds=step_seconds)

    def pulled(self) -> Pull:
        return self.leader.hear("pull").pull

    def push(self, rank: int, pull: Pull, theta: Floats, coding: Coding, **changes: object) -> None:
        """The rank's portion of the fragment that has been trained to `theta`."""
        own = self.portions[rank][pull.fragment]
        if not own.size:
            return
        version, base = self.held[rank][pull.fragment]
        header = Chunk(kind=Chunk.PUSH, fragment=pull.fragment, t=pull.t, coding=coding.value, steps=1, tokens=8)  # type: ignore[arg-type]
        header.tokens_done, header.steps_done, header.base = 8 * pull.t, pull.t, version
        for name, value in changes.items():
            setattr(header, name, value)
        payload = encode(coding, own.cut(theta), base if coding.delta else None)
        self.pushed += payload.nbytes
        self.streams[rank].transfer(header, bytes(payload))

    def push_all(self, pull: Pull, theta: Floats, coding: Coding) -> None:
        for rank in range(self.ranks):
            self.push(rank, pull, theta, coding)

    def adopt(self, rank: int, transfer: Transfer) -> None:
        """Take a broadcast as a rank does."""
        header, own = transfer.header, self.portions[rank][transfer.header.fragment]
        self.received += transfer.payload.nbytes
        if header.coding == Chunk.FLOAT32:
            value = np.frombuffer(transfer.payload, np.float32)
        else:
            version, base = self.held[rank][header.fragment]
            assert version == header.base
            coding = Coding(header.coding)
            value = value_of(coding, transfer.payload, base) if self.owned is None else value_of_cut(coding, transfer.payload, own, base)
        assert value.shape == (own.size,)
        self.held[rank][header.fragment] = header.t, value

    def receive(self, count: int = 1, ranks: Sequence[int] | None = None) -> RawUnit:
        """The next broadcasts of every rank."""
        for rank in range(self.ranks) if ranks is None else ranks:
            for _ in range(count):
                self.adopt(rank, self.streams[rank].receive())
        return self

    def value(self, p: int) -> Floats:
        """What all ranks together hold of a fragment."""
        together = np.full(self.fragments[p].size, np.nan, np.float32)
        for rank in range(self.ranks):
            self.portions[rank][p].place(self.held[rank][p][1], together)
        return together

    def trained(self, pull: Pull) -> Floats:
        """What the unit has made of a fragment: the same for every sharding."""
        noise = np.random.default_rng([*self.unit.encode(), pull.fragment, pull.t]).standard_normal(self.fragments[pull.fragment].size)
        moved: Floats = (self.value(pull.fragment) + 0.01 * noise).astype(np.float32)
        return moved


def a_round(units: Sequence[RawUnit], number: int, coding: Coding) -> Pull:
    """All units take local step `number`, answer the pull, and adopt the merge."""
    for unit in units:
        unit.step(number)
    pulls = [unit.pulled() for unit in units]
    for unit, pull in zip(units, pulls, strict=True):
        unit.push_all(pull, unit.trained(pull), coding)
    for unit in units:
        unit.receive()
    return pulls[0]
