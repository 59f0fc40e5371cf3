"""What a framework's adapter gives and takes of a learner's state.

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
"""A state that would take longer may have twice as much of each step. This costs its giver the same in all, and its taker waits half as
long."""
LEAST_SECONDS = 0.0005
"""That staging may take in any case."""
STEPS = "steps"
"""Key of the small rest under which the `steps` of a `CountedState` are."""
ARRAYS = "arrays"
"""Key of the small rest under which is what `arrays_of` returns, where the optimizer has other arrays after some step than before it."""


def staging_seconds(step_seconds: float, *, is_long: bool) -> float:
    """Return how long staging may take at the boundary after a step of `step_seconds`. `is_long`: see LONG_SECONDS."""
    return max(LEAST_SECONDS, STEP_SHARE * step_seconds * (2 if is_long else 1))


class StagedRest(Protocol):
    """The small rest of a state as it was at a step boundary, on its way to the host."""

    def wait(self) -> Any:
        """Return a tree for `values.encode`. Belongs on a background thread."""
        ...


class InnerState(Protocol):
    """The state of one process: parameters, what the inner optimizer keeps in their shape, and a small rest (step counts, rates, what the
    program hands over). Every method is called on the training thread, and none while a step runs."""

    @property
    def kind(self) -> str:
        """What it is, such as "torch AdamW". Only states of one kind go from process to process."""
        ...

    @property
    def lent(self) -> bool:
        """The program uses the state up in a step whose result it has not given yet, so that nothing can be staged. Never where steps
        change it in place."""
        ...

    def held(self) -> Sequence[Piece]:
        """Return what this process stores of the model, one piece of a tensor at most: what `put` takes."""
        ...

    def warm_up(self, parts: Sequence[Sequence[Piece]]) -> None:
        """Do now what would make the first `stage` of these parts slow: compile."""
        ...

    def arrays(self, pieces: Sequence[Piece]) -> list[PieceArray]:
        """Return what there is of these pieces of the model, also of those that other ranks store: the parameter, and what the optimizer
        keeps for it by now. Raises StateError for state that cannot be given."""
        ...

    def stage(self, arrays: Sequence[PieceArray]) -> Staged:
        """Keep the values that these have now, and begin to bring them to the host: float32, one array after the other, each in canonical
        order."""
        ...

    def stage_rest(self) -> StagedRest:
        """Keep the small rest as it is now. Raises StateError for state that cannot be given."""
        ...

    def begin(self) -> None:
        """Begin a copy: what was put of an earlier one is forgotten, but for parameters."""
        ...

    def put(self, array: PieceArray, values: Float32Array) -> None:
        """Write values, float32 [elements], to their place: of a parameter at once, of the optimizer's state once `finish` is called.
        Raises StateError for what has no place here."""
        ...

    def check(self, rest: Any) -> None:
        """Raise StateError if what was put, with `rest`, does not fit this program. Changes nothing."""
        ...

    def finish(self, rest: Any) -> None:
        """Make what was put the optimizer's state from now on: the copy is whole. Raises StateError, and changes nothing, if `rest` does
        not fit this program."""
        ...


class CountedState(InnerState, Protocol):
    """The state of this process's program, which knows how long it was trained."""

    steps: int
    """Local steps behind the optimizer's state: those of this process, which the session counts, and those of the state that `finish` has
    put in its place. They are `STEPS` of its small rest."""


def steps_behind(rest: Mapping[str, Any]) -> int:
    """Return the local steps behind a state, from its small rest; 0: a version of diloco that did not count them has written it. Raises
    ValueError for what is no number of steps."""
    steps = rest.get(STEPS, 0)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"the local steps behind it are {steps!r}, which is no number of steps")
    return steps


def arrays_of(arrays: Iterable[PieceArray]) -> list[tuple[list[str], list[str]]]:
    """Return which arrays the optimizer keeps of which tensors: their names, with all tensors that have these."""
    tensors = defaultdict(list)
    for tensor, names in names_by_tensor(arrays).items():
        tensors[tuple(sorted(names))].append(tensor)
    return [(list(names), of_these) for names, of_these in tensors.items()]


def names_of(rest: Mapping[str, Any]) -> Mapping[str, frozenset[str]] | None:
    """Return by tensor which arrays the optimizer kept when this small rest was read; None: it does not say."""
    if (arrays := rest.get(ARRAYS)) is None:
        return None
    return {tensor: frozenset(names) for names, tensors in arrays for tensor in tensors}


def names_by_tensor(arrays: Iterable[PieceArray]) -> Mapping[str, frozenset[str]]:
    """Return by tensor the names of the arrays that the optimizer keeps of it; tensors of which it keeps none are left out."""
    found = defaultdict(set)
    for one in arrays:
        if one.name:
            found[one.piece.tensor].add(one.name)
    return {tensor: frozenset(names) for tensor, names in found.items()}
