"""The ranks of an explored unit: real members over a side channel in memory, of which each message is delivered when the explorer says so.

Each holds some rows of two tensors, one in each fragment. A parameter is a thousand times the version that was adopted and the local steps
since; a moment says whose it is, and how many steps that process had done: so each number tells where it is from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from builders.exchange import training
from builders.explored_defects import broken
from builders.momentum_learner import Copied
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.pieces import Piece, portion
from diloco.learner.arrays import ArrayStore
from diloco.learner.exchanged_model import ExchangedModel
from diloco.learner.inbox import Inbox, Received, Welcomed
from diloco.learner.incarnations import Incarnations
from diloco.learner.member import MemberParts
from diloco.learner.peers import Peers
from diloco.learner.store import Float32Array, Ready
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.ranks.channel import RankIdentity
from diloco.ranks.samples import DataRank

ROWS, COLUMNS = 6, 2
NAMES = ("w0", "w1")
LAYOUT = Layout([TensorSpec(name, (ROWS, COLUMNS)) for name in NAMES])
FRAGMENTS = make_fragments(LAYOUT, 2)
VERSION, PROCESS = 1000, 10_000
"""What one version adds to a parameter, and one process to a moment."""


class Inline:
    """An executor that does at once what it is given."""

    def submit(self, call: Callable[..., None], *arguments: Any) -> Future[None]:
        call(*arguments)
        return Future()

    def shutdown(self, **_: Any) -> None:
        pass


class Nothing:
    """A connection to the syncer on which nothing is sent: the explorer says what comes."""

    def __getattr__(self, name: str) -> Any:
        return self if name == "heartbeat" else lambda *_, **__: None


class Rows(ArrayStore):
    """A rank's rows of each tensor."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.first = ROWS * rank // ranks
        size = ROWS * (rank + 1) // ranks - self.first
        super().__init__({name: np.full((size, COLUMNS), -VERSION, np.float32) for name in NAMES})
        self.pieces = [Piece(name, (self.first, 0), (size, COLUMNS)) for name in NAMES]

    def specs(self) -> Sequence[TensorSpec]:
        return LAYOUT.tensors

    def owned(self) -> Sequence[Piece]:
        return self.pieces

    def rows(self, piece: Piece, values: Mapping[str, Float32Array]) -> Float32Array:
        return Piece(piece.tensor, (piece.start[0] - self.first, piece.start[1]), piece.size).of(values[piece.tensor])


class RowsState:
    """An `InnerState` of a rank's rows."""

    kind = "of a test"
    lent = False

    def __init__(self, store: Rows, process: int) -> None:
        """`process`: number of the unit's process among all of a run."""
        self.store, self.process = store, process
        self.moments = {name: np.zeros_like(value) for name, value in store.arrays.items()}
        self.steps = 0
        self.refuses = ""
        """What of the next copy it does not take: "parts" or "rests"."""
        self.late = False
        """A defect: staged parameters are read when they are sent."""
        self._new: dict[str, Float32Array] = {}

    def step(self) -> None:
        """A local step: it changes all."""
        self.steps += 1
        for name in NAMES:
            self.store.arrays[name] += 1
            self.moments[name][...] = PROCESS * self.process + self.steps

    def held(self) -> Sequence[Piece]:
        return self.store.pieces

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        pass

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        return [PieceArray(piece, name, "float32") for piece in pieces for name in ("", "moment")]

    def stage(self, arrays: Sequence[PieceArray]) -> Any:
        def read(one: PieceArray) -> Float32Array:
            return self.store.rows(one.piece, self.moments if one.name else self.store.arrays).flatten()

        staged = [read(one) for one in arrays]
        return Late(
            lambda: np.concatenate([read(one) if self.late and not one.name else at for one, at in zip(arrays, staged, strict=True)])
        )

    def stage_rest(self) -> Copied:
        return Copied({"steps": self.steps})

    def begin(self) -> None:
        self._new = {name: np.zeros_like(value) for name, value in self.moments.items()}

    def put(self, array: PieceArray, values: Float32Array) -> None:
        self._refuse("parts")
        self.store.rows(array.piece, self._new)[...] = values.reshape(array.piece.size)

    def check(self, rest: Any) -> None:
        self._refuse("rests")

    def finish(self, rest: Any) -> None:
        self.moments, self.steps = self._new, rest["steps"]

    def _refuse(self, what: str) -> None:
        if self.refuses == what:
            self.refuses = ""
            raise StateError("it is not taken")


class Late(Copied):
    """Its value is made when it is sent."""

    def wait(self) -> Any:
        return self._value()


class Channel:
    """A rank's end of the side channel."""

    def __init__(self, rank: int, ranks: int, send: Callable[[bytes, int | None], None]) -> None:
        """`send(message, rank)`: None: to all at the other ends."""
        self.me = RankIdentity("job", "u", 1, rank, ranks)
        self.changed = threading.Condition()
        self.mail: list[tuple[int, Any]] = []
        self.wanted: Callable[[int], None] = lambda batches: None
        self.state_said: Callable[[int, Any], None] = lambda rank, said: None
        self._send = send
        self._said: deque[tuple[bytes, int | None]] = deque()

    def say(self, message: Any, rank: int | None = None) -> None:
        self._said.append((message.SerializeToString(), rank))

    def send(self) -> None:
        while self._said:
            self._send(*self._said.popleft())

    def heard(self) -> list[tuple[int, Any]]:
        mail, self.mail = self.mail, []
        return mail

    @property
    def has_mail(self) -> bool:
        return bool(self.mail)


class Rank:
    """What one rank is made of, but for its member."""

    def __init__(self, rank: int, ranks: int, process: int, send: Callable[[bytes, int | None], None]) -> None:
        self.rank = rank
        self.store = Rows(rank, ranks)
        self.state = RowsState(self.store, process)
        self.channel = Channel(rank, ranks, send)
        self.inbox = Inbox(2)
        self.incarnations = Incarnations()
        self.incarnations.number(b"now")
        self.stream: deque[tuple[int, int]] = deque()
        """Fragment and version of what the syncer has sent."""
        self.portions = [portion(fragment, self.store.pieces) for fragment in FRAGMENTS]
        self.seen: set[tuple[float, float]] = set()
        """Parameter and moment of one element at a boundary."""
        self.adopted = [-1, -1]
        """Per fragment the version that it was overwritten with last."""
        self.model = ExchangedModel(_Noting(self), self.portions, lambda: None, None)
        self.data = DataRank(rank, ranks)

    def parts(self, peers: Peers | None = None) -> MemberParts:
        return MemberParts("u", training(1000, overlap_steps=2), self.model, self.inbox, Nothing(), peers or Peers())  # type: ignore[arg-type]

    def welcomed(self, t: int) -> None:
        self.inbox.put(Welcomed(1, t, 1000, seed_wanted=False, asked=0))

    def receive(self) -> None:
        if self.stream:
            fragment, version = self.stream.popleft()
            values = np.full(self.portions[fragment].size, VERSION * version, np.float32)
            self.inbox.put(Received(fragment, version, self.store.prepare(self.model.names[fragment], values)))

    def note(self) -> None:
        """Keep what a donor may say of this moment."""
        for name in NAMES:
            pairs = zip(self.store.arrays[name].ravel().tolist(), self.state.moments[name].ravel().tolist(), strict=True)
            self.seen.update(pairs)

    def check(self) -> None:
        for fragment, names in enumerate(self.model.names):
            held = min(int(self.store.arrays[name].min()) // VERSION for name in names)
            if held < self.adopted[fragment]:
                raise broken(
                    f"replayed: rank {self.rank} has version {held} of fragment {fragment}, and had adopted {self.adopted[fragment]}"
                )


class _Noting:
    """A rank's store, which notes what version a fragment is overwritten with."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rank.store, name)

    def apply(self, ready: Ready) -> None:
        self._rank.store.apply(ready)
        values = {float(value.max()) for value in ready.native}
        if all(value % VERSION == 0 for value in values):  # a broadcast, or what a donor had just adopted
            fragment = next(index for index, names in enumerate(self._rank.model.names) if set(names) == set(ready.names))
            self._rank.adopted[fragment] = int(max(values)) // VERSION
