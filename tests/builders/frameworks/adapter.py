"""What the contract suite asks of a framework's adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
