"""One rank of a unit in numpy: each holds some rows of every tensor, and trains them alone. Starts in a third of a second.

    quadratic_ranks.py RANK RANKS

The contract's environment says where the leader and the syncer are. These, all optional, say how to behave:

RANKS_STEP_MS   a step lasts this long (default 5)
RANKS_BATCH, RANKS_BATCH_OF_<rank>   samples of this rank's batch (default 2)
RANKS_BATCHES, RANKS_BATCHES_OF_<rank>   batches for each step (default 1)
RANKS_SAME      "1": all ranks train the same samples, as in a tensor-parallel group
RANKS_SHARDS, RANKS_SHARDS_OF_<rank>   take shards of so many; shard n has n % 3 + 1 batches. Its numbers in the trace are (epoch, index)
RANKS_FILLS     a folder: the ranks meet there whenever they fill replicas after an adoption
RANKS_MEETS     a folder: the ranks meet there in each step
RANKS_TRACE     append one JSON line {"unit", "rank", "step", "t", "progress", "numbers", "adopted"} a step to this file
RANKS_CHANGES_MODEL  this rank changes its rows once the job is done
RANKS_TAKES_FROM_STEP, RANKS_GATE  rank 1 does no step from this local step on, and takes batches once the file RANKS_GATE is there
RANKS_DTYPES_OF_<rank>  JSON: say that this rank keeps these tensors in these types
RANKS_FINISH_AT_STEP  from this local step on, say in each rank that the job shall end
RANKS_STATES    a folder: train with momentum, which peers may take. <unit>.<attempt>.<rank> gets a JSON line {"began", "steps", "momentum",
                "parameters"} once the rank has joined, {"step", "momentum"} for each local step, and {"version", "adopted"} whenever it
                has adopted a broadcast, also while it joins; values are {tensor: [first row, hex]}

At the end each rank prints one JSON line: {"rank", "steps", "rows": {tensor: [first row, hex of the values]}}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from diloco import contract
from diloco.algorithm.layout import TensorSpec
from diloco.algorithm.pieces import Piece
from diloco.learner.arrays import ArrayStore, StagedCopy
from diloco.learner.progress import JobProgress
from diloco.learner.store import Float32Array, Ready
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.ranks import state_of_unit
from diloco.ranks.liveness import Silence
from diloco.ranks.samples import DataRank
from diloco.ranks.world import World
from diloco.recovery import process_copy, state_donor, state_transfer, taking
from diloco.session.session import AdapterHooks, Session

SHAPES = {"embedding": (16, 8), "layer": (5, 8), "scale": (3,)}
"""The last has no row for the last of four ranks."""
TOKENS = 16
"""Tokens of each sample."""
PATIENCE = 180.0
"""Limit of each wait for another process, seconds."""


class RowStore(ArrayStore):
    """A rank's rows of every tensor, which it owns."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.fills = 0
        self.reclaimed = False
        self.first = {name: -(-shape[0] * rank // ranks) for name, shape in SHAPES.items()}
        ends = {name: -(-shape[0] * (rank + 1) // ranks) for name, shape in SHAPES.items()}
        self.rows = {name: np.zeros((ends[name] - self.first[name], *shape[1:]), np.float32) for name, shape in SHAPES.items()}
        super().__init__({name: value for name, value in self.rows.items() if len(value)})

    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(name, SHAPES[name], name == "embedding") for name in sorted(SHAPES)]

    def dtypes(self) -> Mapping[str, str]:
        return {**super().dtypes(), **json.loads(os.environ.get(f"RANKS_DTYPES_OF_{self.rank}", "{}"))}

    def owned(self) -> list[Piece]:
        return [Piece(name, (self.first[name], *(0 for _ in value.shape[1:])), value.shape) for name, value in sorted(self.arrays.items())]

    def stage(self, names: Sequence[str]) -> StagedCopy:
        return super().stage(self._mine(names))

    def prepare(self, names: Sequence[str], values: Float32Array) -> Ready:
        return super().prepare(self._mine(names), values)

    def rounded(self, names: Sequence[str], values: Float32Array) -> Float32Array:
        return values

    def warm_up(self, groups: Sequence[Sequence[str]]) -> None:
        pass

    def reclaim(self) -> None:
        self.reclaimed = True

    def fill(self, names: Sequence[str]) -> None:
        """As a collective of a framework: it ends once all ranks have called it as often."""
        self.fills += 1
        _meet("RANKS_FILLS", self.rank, self.ranks, self.fills)

    def said(self, values: Mapping[str, Float32Array] | None = None) -> dict[str, list[Any]]:
        """Values of this rank's rows as JSON; None: the parameters."""
        return {name: [self.first[name], value.tobytes().hex()] for name, value in (self.arrays if values is None else values).items()}

    def _mine(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self.arrays]


class Kept:
    """A `Staged` and a `StagedRest`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def wait(self) -> Any:
        return self.value

    def release(self) -> None:
        pass


class RowState:
    """A `CountedState` of a rank's rows: momentum in the shape of the parameters."""

    kind = "numpy momentum of rows"
    lent = False

    def __init__(self, store: RowStore) -> None:
        self._store = store
        self.momentum = {name: np.zeros_like(value) for name, value in store.arrays.items()}
        self.steps = 0
        self._new: dict[str, Float32Array] = {}

    def with_momentum(self, name: str, change: Float32Array) -> Float32Array:
        self.momentum[name] = np.float32(0.5) * self.momentum[name] + change
        return self.momentum[name]

    def held(self) -> list[Piece]:
        return self._store.owned()

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        pass

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        return [PieceArray(piece, name, "float32") for piece in pieces for name in ("", "momentum")]

    def stage(self, arrays: Sequence[PieceArray]) -> Kept:
        of = {"": self._store.arrays, "momentum": self.momentum}
        return Kept(np.concatenate([self._rows(one.piece, of[one.name]).ravel() for one in arrays]))

    def stage_rest(self) -> Kept:
        return Kept({"steps": self.steps})

    def begin(self) -> None:
        self._new = {name: np.zeros_like(value) for name, value in self._store.arrays.items()}

    def put(self, array: PieceArray, values: Float32Array) -> None:
        self._rows(array.piece, self._new if array.name else self._store.arrays)[...] = values.reshape(array.piece.size)

    def check(self, rest: Any) -> None:
        if not isinstance(rest, dict) or "steps" not in rest:
            raise StateError("the donor has counted no steps")

    def finish(self, rest: Any) -> None:
        self.check(rest)
        self.momentum, self.steps = dict(self._new), rest["steps"]

    def _rows(self, piece: Piece, values: Mapping[str, Float32Array]) -> Float32Array:
        start = (piece.start[0] - self._store.first[piece.tensor], *piece.start[1:])
        return Piece(piece.tensor, start, piece.size).of(values[piece.tensor])


def _be_patient() -> None:
    """Give up no rank and no donor for its silence: it may wait for a core, or be held back on purpose. `rank.py` is for tests of that."""
    Silence.__init__.__defaults__ = (PATIENCE,)  # its `limit`
    process_copy.SILENCE_SECONDS = taking.NAME_SECONDS = PATIENCE
    state_of_unit.ANSWER_SECONDS = state_donor.GRANT_SECONDS = state_transfer.BOUNDARY_SECONDS = PATIENCE


def main() -> None:
    _be_patient()
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    store = RowStore(rank, ranks)
    adopted: list[list[str]] = []
    same = DataRank(0, 1) if os.environ.get("RANKS_SAME") else None
    world = World(rank, ranks, lambda given: [given], same) if ranks > 1 else None
    state = RowState(store) if os.environ.get("RANKS_STATES") else None
    if state is not None:
        _trace_adoptions(store, rank, adopted)
    hooks = AdapterHooks(on_adopt=lambda names: adopted.append(list(names)))
    session = Session.join(store, framework="numpy", world=world, hooks=hooks, inner=state)
    if state is not None:
        _write_states(rank, {"began": True, "steps": state.steps, "momentum": store.said(state.momentum), "parameters": store.said()})
    step_seconds = float(os.environ.get("RANKS_STEP_MS", "5")) / 1000
    batch_size = int(os.environ.get(f"RANKS_BATCH_OF_{rank}", os.environ.get("RANKS_BATCH", "2")))
    finish_at = int(os.environ.get("RANKS_FINISH_AT_STEP", "0"))
    batches = int(os.environ.get(f"RANKS_BATCHES_OF_{rank}", os.environ.get("RANKS_BATCHES", "1")))
    takes_from = int(os.environ.get("RANKS_TAKES_FROM_STEP", "0")) if rank == 1 else 0
    with session:
        numbers: list[int] = []
        for count, batch in enumerate(_batches(session, batch_size), 1):
            numbers += batch
            if takes_from and session.step_count >= takes_from:
                while not Path(os.environ["RANKS_GATE"]).exists():
                    session.evaluate(0.25, 100)  # comes to boundaries, as a rank does that waits for a batch
                    time.sleep(0.01)
                continue
            if count % batches:
                continue
            for name, value in store.arrays.items():
                change = np.float32(0.1) * (1 - value)
                value += change if state is None else state.with_momentum(name, change)
            if state is not None:
                _write_states(rank, {"step": state.steps + 1, "momentum": store.said(state.momentum)})
            time.sleep(step_seconds)
            _meet("RANKS_MEETS", rank, ranks, session.step_count)
            adopted.clear()
            session.step(tokens=TOKENS * len(numbers), loss=0.5, batches=batches)
            _trace(session, rank, numbers, adopted)
            if finish_at and session.step_count >= finish_at:
                session.finish("as requested at this step")
            numbers = []
        if session.done:
            assert store.reclaimed, "the final values are written to what the program may have given away"
            session.evaluate(0.25, 100)
            if str(rank) == os.environ.get("RANKS_CHANGES_MODEL"):
                store.rows["layer"] += 1
            print(json.dumps({"rank": rank, "steps": session.step_count, "rows": store.said(store.rows)}), flush=True)


def _trace_adoptions(store: RowStore, rank: int, adopted: list[list[str]]) -> None:
    """Trace each broadcast as the model holds it once it is adopted."""
    note = JobProgress.adopted

    def noting(self: JobProgress, step: int, t: int, tokens: int = 0) -> None:
        values = {name: value for name, value in store.arrays.items() if name in adopted[-1]}
        _write_states(rank, {"version": t, "adopted": store.said(values)})
        note(self, step, t, tokens)

    JobProgress.adopted = noting  # type: ignore[method-assign]  # the one of this process is made while it joins


def _write_states(rank: int, line: dict[str, Any]) -> None:
    unit, attempt = os.environ[contract.ENV_UNIT], os.environ[contract.ENV_ATTEMPT]
    with (Path(os.environ["RANKS_STATES"]) / f"{unit}.{attempt}.{rank}").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _meet(variable: str, rank: int, ranks: int, number: int) -> None:
    """A collective, as a program has them: it waits for the other ranks, and the session does not see it."""
    if folder := os.environ.get(variable):
        (Path(folder) / f"{rank}-{number}").touch()
        for other in range(ranks):
            _wait_for(Path(folder) / f"{other}-{number}")


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.001)


def _batches(session: Session, batch_size: int) -> Iterator[list[int]]:
    if shards := os.environ.get(f"RANKS_SHARDS_OF_{sys.argv[1]}", os.environ.get("RANKS_SHARDS")):
        for shard in session.shards(int(shards)):
            for _ in range(shard.index % 3 + 1):
                yield [shard.epoch, shard.index]
                if session.over:
                    break
    else:
        yield from (batch.tolist() for batch in session.batches(lambda numbers: numbers, batch_size))


def _trace(session: Session, rank: int, numbers: list[int], adopted: list[list[str]]) -> None:
    if path := os.environ.get("RANKS_TRACE"):
        line = {"unit": os.environ[contract.ENV_UNIT], "rank": rank, "step": session.step_count, "t": session.t, "numbers": numbers}
        line["progress"] = session.progress
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "adopted": adopted}) + "\n")


if __name__ == "__main__":
    main()
