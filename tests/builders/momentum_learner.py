"""A learner in numpy with momentum, whose state beside the parameters a peer may take: for tests of recovery without a framework."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from builders.exchange import WAIT_TIMEOUT, Place, solo, weights
from diloco.algorithm.pieces import Piece
from diloco.learner.arrays import ArrayStore
from diloco.learner.leave import Leave
from diloco.learner.store import Float32Array, Ready
from diloco.protocol.state_parts import PieceArray, StateError
from diloco.session.session import Session

MOMENTUM = np.float32(0.9)


class Copied:
    """A `Staged` and a `StagedRest` that is there at once."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value

    def release(self) -> None:
        pass


class MomentumState:
    """A `CountedState`: one array "momentum" for each parameter."""

    def __init__(self, arrays: dict[str, Float32Array], kind: str = "numpy momentum") -> None:
        self.arrays_of_model = arrays
        self.momentum = {name: np.zeros_like(array) for name, array in arrays.items()}
        self.steps = 0
        self.kind = kind
        self.taken = 0
        """Copies that became whole."""
        self.put_arrays: list[PieceArray] = []
        self._new: dict[str, Float32Array] = {}

    lent = False

    def held(self) -> Sequence[Piece]:
        return [Piece(name, (0,) * array.ndim, array.shape) for name, array in self.arrays_of_model.items()]

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        pass

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        return [PieceArray(piece, name, "float32") for piece in pieces for name in ("", "momentum")]

    def stage(self, arrays: Sequence[PieceArray]) -> Copied:
        of = {"": self.arrays_of_model, "momentum": self.momentum}
        return Copied(np.concatenate([one.piece.of(of[one.name][one.piece.tensor]).ravel() for one in arrays]))

    def stage_rest(self) -> Copied:
        return Copied({"steps": self.steps})

    def begin(self) -> None:
        self._new = {name: np.zeros_like(array) for name, array in self.arrays_of_model.items()}
        self.put_arrays = []

    def put(self, array: PieceArray, values: Float32Array) -> None:
        self.put_arrays.append(array)
        target = self._new if array.name else self.arrays_of_model
        array.piece.of(target[array.piece.tensor])[...] = values.reshape(array.piece.size)

    def check(self, rest: Any) -> None:
        if not isinstance(rest, dict) or "steps" not in rest:
            raise StateError("the donor has counted no steps")

    def finish(self, rest: Any) -> None:
        self.check(rest)
        self.momentum.update(self._new)
        self.steps = rest["steps"]
        self.taken += 1


class HeldState(MomentumState):
    """Its small rest, the last part of a copy, is held back on its way to a taker. The donor trains on meanwhile."""

    def __init__(self, arrays: dict[str, Float32Array]) -> None:
        super().__init__(arrays)
        self.reached = threading.Event()
        """A copy has come so far."""
        self.go = threading.Event()
        """Let all copies go on."""

    def stage_rest(self) -> Copied:
        return _Held(self, super().stage_rest().wait())


class _Held(Copied):
    def __init__(self, state: HeldState, value: Any) -> None:
        super().__init__(value)
        self._state = state

    def wait(self) -> Any:
        self._state.reached.set()
        assert self._state.go.wait(WAIT_TIMEOUT)
        return super().wait()


class _Recorded(ArrayStore):
    """Notes what is adopted."""

    def __init__(self, arrays: dict[str, Float32Array], adopted: dict[str, Float32Array]) -> None:
        super().__init__(arrays, embeddings=["w0"])
        self._adopted = adopted

    def apply(self, ready: Ready) -> None:
        super().apply(ready)
        self._adopted.update({name: np.array(value) for name, value in zip(ready.names, ready.native, strict=True)})


class MomentumLearner:
    """Trains in a thread of this process: each step pulls every parameter towards `goal`, with momentum."""

    def __init__(
        self,
        place: Place,
        address: str,
        unit: str,
        attempt: int = 1,
        *,
        state: MomentumState | None = None,
        goal: float = 1.0,
        step_seconds: float = 0.002,
        at_step: Callable[[int], None] = lambda step: None,
        **environment: str,
    ) -> None:
        """`at_step` is called after each local step, with its number."""
        self.unit = unit
        self.state = state if state is not None else MomentumState(weights())
        self.arrays = self.state.arrays_of_model
        self.joined_with: dict[str, Float32Array] | None = None
        """The parameters before the first step."""
        self.adopted_at_join: dict[str, Float32Array] = {}
        self.began_with_steps = 0
        """What the state counted before the first step."""
        self.adopted: dict[str, Float32Array] = {}
        """What each parameter was overwritten with last, by an adoption."""
        self.entered: Session | None = None
        """The session, from before it has its state."""
        self.session: Session | None = None
        self.failure: BaseException | None = None
        self._at_step = at_step
        self._environment = place.of_learner(address, unit, attempt, **environment)
        self._goal, self._step_seconds = np.float32(goal), step_seconds
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> MomentumLearner:
        self._thread.start()
        return self

    @property
    def steps(self) -> int:
        return self.session.step_count if self.session is not None else 0

    def drain(self) -> None:
        """As SIGTERM does: a learner that waits ends as well."""
        if self.entered is not None:
            self.entered._drain(signal.SIGTERM, None)

    def kill(self) -> None:
        """Its connections break, and nothing of it is heard again."""
        session = self.entered
        assert session is not None
        solo(session).abandon(None)
        session._drain(signal.SIGTERM, None)

    def wait(self) -> MomentumLearner:
        self._thread.join(WAIT_TIMEOUT)
        assert not self._thread.is_alive(), f"learner {self.unit} does not come to an end"
        if self.failure is not None:
            raise self.failure
        return self

    def _run(self) -> None:
        try:
            self._train()
        except Leave:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self.failure = error

    def _train(self) -> None:
        store = _Recorded(self.arrays, self.adopted)
        learner = self

        class Entered(Session):
            def _wait_for_parameters(self) -> None:
                learner.entered = self
                super()._wait_for_parameters()

        with Entered.join(store, framework="numpy", environment=self._environment, inner=self.state) as session:
            self.joined_with = {name: array.copy() for name, array in self.arrays.items()}
            self.adopted_at_join = dict(self.adopted)
            self.began_with_steps = self.state.steps
            self.session = session
            for numbers in session.batches(lambda numbers: numbers, 2):
                for name, array in self.arrays.items():
                    momentum = self.state.momentum[name]
                    momentum *= MOMENTUM
                    momentum += np.float32(0.01) * (self._goal - array)
                    array += momentum
                self._pause.wait(self._step_seconds)
                session.step(tokens=8 * len(numbers), loss=0.5)
                self._at_step(session.step_count)
