"""The interface to a learner's state: what a framework's adapter gives and takes of it.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from diloco.algorithm.pieces import Piece
from diloco.learner.store import Float32Array, Staged
from diloco.protocol.state_parts import PieceArray

STEP_SHARE = 0.05
"""Share of a step that staging may take at the boundary after it."""
LONG_SECONDS = 10.0
"""A state that would take longer may have twice the share: in all it costs its donor the same, and its taker waits half as long."""
LEAST_SECONDS = 0.0005
"""How long staging may always take, even after a very short step."""
STEPS = "steps"
"""Key in the small rest for the `steps` of a `CountedState`."""
ARRAYS = "arrays"
"""Key in the small rest for the result of `arrays_of`, if the optimizer's set of arrays changes at some step."""


def staging_seconds(step_seconds: float, *, is_long: bool) -> float:
    """Return how long staging may take at the boundary after a step of `step_seconds`. `is_long`: see LONG_SECONDS."""
    return max(LEAST_SECONDS, STEP_SHARE * step_seconds * (2 if is_long else 1))


class StagedRest(Protocol):
    """The small rest of a state as it was at a step boundary, on its way to the host."""

    def wait(self) -> Any:
        """Return a tree for `state_values.encode`. Called on a background thread."""
        ...


class InnerState(Protocol):
    """The state of one process: parameters, arrays of the inner optimizer in their shape, and a small rest (step counts, rates, what the
    program hands over). Every method is called on the training thread, and none while a step runs."""

    @property
    def kind(self) -> str:
        """Names the form of the state, such as "torch AdamW". A process takes only states of its own kind."""
        ...

    @property
    def lent(self) -> bool:
        """The program uses the state up in a step whose result it has not given yet, so nothing can be staged. Never true where steps
        change the state in place."""
        ...

    def held(self) -> Sequence[Piece]:
        """Return the pieces of the model that this process stores and `put` takes, at most one of each tensor."""
        ...

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        """Do now what would make the first `stage` of these parts slow: compile."""
        ...

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        """Return the arrays that exist for these pieces, also for those that other ranks store: the parameter, and what the optimizer keeps
        for it by now. Raises StateError for state that cannot be given."""
        ...

    def stage(self, arrays: Sequence[PieceArray]) -> Staged:
        """Keep the present values of these arrays, and begin to bring them to the host: float32, one array after the other, each in
        canonical order."""
        ...

    def stage_rest(self) -> StagedRest:
        """Keep the small rest as it is now. Raises StateError for state that cannot be given."""
        ...

    def begin(self) -> None:
        """Begin a copy: forget what an earlier copy has put, except its parameters, which are in the model already."""
        ...

    def put(self, array: PieceArray, values: Float32Array) -> None:
        """Take values, float32 [elements]. Those of a parameter go into the model at once, the optimizer's once `finish` is called. Raises
        StateError for an array that has no place in this process."""
        ...

    def check(self, rest: Any) -> None:
        """Raise StateError if what was put, with `rest`, does not fit this program. Changes nothing."""
        ...

    def finish(self, rest: Any) -> None:
        """Adopt what was put as the optimizer's state: the copy is whole. If `rest` does not fit this program, raise StateError and change
        nothing."""
        ...


class CountedState(InnerState, Protocol):
    """A state that knows for how many steps it was trained."""

    steps: int
    """Local steps behind the optimizer's state: the steps of this process, which the session counts, and those behind the state that it
    began with. Its small rest has them as `STEPS`."""


def steps_behind(rest: Mapping[str, Any]) -> int:
    """Return the local steps behind a state, from its small rest. 0 if a version of diloco that did not count them has written it.

    Raises ValueError for what is no number of steps.
    """
    steps = rest.get(STEPS, 0)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"the local steps behind it are {steps!r}, which is no number of steps")
    return steps


def arrays_of(arrays: Iterable[PieceArray]) -> list[tuple[list[str], list[str]]]:
    """Return which arrays the optimizer keeps for which tensors, as (names of arrays, the tensors that have exactly these arrays)."""
    tensors = defaultdict(list)
    for tensor, names in names_by_tensor(arrays).items():
        tensors[tuple(sorted(names))].append(tensor)
    return [(list(names), with_these) for names, with_these in tensors.items()]


def names_of(rest: Mapping[str, Any]) -> Mapping[str, frozenset[str]] | None:
    """Return which arrays the optimizer kept for each tensor when this small rest was read. None if the rest does not say."""
    if (arrays := rest.get(ARRAYS)) is None:
        return None
    return {tensor: frozenset(names) for names, tensors in arrays for tensor in tensors}


def names_by_tensor(arrays: Iterable[PieceArray]) -> Mapping[str, frozenset[str]]:
    """Return the names of the arrays that the optimizer keeps for each tensor. Tensors without such arrays are left out."""
    by_tensor = defaultdict(set)
    for array in arrays:
        if array.name:
            by_tensor[array.piece.tensor].add(array.name)
    return {tensor: frozenset(names) for tensor, names in by_tensor.items()}
