"""What the contract suite asks of a framework's adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from builders.scripted_connection import ScriptedSession
from diloco.canonical import Canonical
from diloco.learner.store import Float32Array, ParameterStore

NAMES = ["matrix", "layer.1", "vector", "scalar", "layer.0"]
"""Canonical tensors of a `Model`, in another order than they lie in it."""
SHAPES = {"matrix": (3, 5), "layer.0": (2, 4), "layer.1": (2, 4), "vector": (7,), "scalar": ()}
SIZE = 15 + 8 + 7 + 1 + 8
TURNED_AND_STACKED: dict[str, Canonical | str] = {
    "matrix": Canonical("matrix", axes=(1, 0)),
    "layers": Canonical("layer.{layer}", axes=(1, 0), stacked=True),
}
"""How a framework keeps these tensors: the matrix turned, the layers stacked and turned."""


@runtime_checkable
class NamedStore(ParameterStore, Protocol):
    """A store whose tensors can be looked at by name too."""

    def read(self, names: Sequence[str], /) -> Mapping[str, Float32Array]:
        """Return copies, float32 in canonical shape. Raises KeyError."""
        ...

    def write(self, values: Mapping[str, Float32Array], /) -> None:
        """Overwrite the parameters. Raises KeyError, and ValueError for another shape."""
        ...


@dataclass
class Model:
    """Tensors of NAMES and SHAPES, all 0; and a step of the program, which adds 1 to every parameter."""

    store: ParameterStore
    train: Callable[[], None]


class Program(ABC):
    """A program with parameters of one type, whose job overwrites them. Its store watches what becomes of adopted values."""

    @abstractmethod
    def step(self) -> None:
        """Take a step from the parameters as they are. It moves them by much less than 1."""

    @abstractmethod
    def adopt(self, change: float) -> None:
        """Let the job move the parameters by `change`."""

    @abstractmethod
    def undo(self, change: float) -> None:
        """Let the job move the parameters by `change`, and go on from those before for as many steps as it takes to notice."""

    @abstractmethod
    def adopt_own(self) -> None:
        """Adopt what a step came from, as a unit that is alone in its job does, and take that step again."""


class Joined(ABC):
    """A program of two parameters, `a` and `b`, two fragments, that has joined a job: 5 everywhere, 100 samples leased."""

    job: ScriptedSession
    session: Any
    """What the framework gives to a program."""

    def step(self) -> None:
        """Take a batch, add 1 to all parameters, and tell the session."""
        self.job.batch()
        self.step_without_a_batch()

    @abstractmethod
    def step_without_a_batch(self) -> None:
        """Add 1 to all parameters, and tell the session."""

    @abstractmethod
    def values(self) -> tuple[set[float], set[float]]:
        """Return the different values of `a` and of `b` that the program goes on from."""


@dataclass
class Clock:
    """Where a process and its job are."""

    progress: float = 0.0
    optimizer_steps: int = 0


type Rate = Callable[[], float]
"""The learning rate of the next update, for where the clock is."""


class MakeRate(Protocol):
    """The schedule of an adapter, in a program."""

    def __call__(self, clock: Clock, peak: float, decay: Any, *, warmup: int = 0, final: float = 0.0, tail: float = 0.2) -> Rate: ...


class MakeBase(Protocol):
    """A store with frozen tensors of these values, by the name that the program has for them, and `trained`, which is trained."""

    def __call__(self, values: Mapping[str, np.ndarray], canonical: Mapping[str, Canonical | str], dtypes: Mapping[str, str]) -> Any: ...


@dataclass(frozen=True)
class Framework:
    """One adapter."""

    types: tuple[tuple[str, str], ...]
    """Types of matrices and layers, and of the rest, that it is tested with."""
    model: Callable[[str, str], Model]
    reads_by_name: bool = True
    """Its store is a `NamedStore`."""
    program: Callable[[str], Program] | None = None
    """Makes a program of a type. None: a step is the adapter's own, and undoes nothing."""
    joined: Callable[[], Joined] | None = None
    """None: it has no session."""
    rate: MakeRate | None = None
    """None: it has no schedule."""
    base: MakeBase | None = None
    """`dtypes`: of tensors that are kept in another type than their values have. None: it freezes nothing."""
