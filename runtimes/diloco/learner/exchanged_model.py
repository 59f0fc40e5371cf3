"""The model that a process trains, as the job sees it: its fragments, and what this process owns of each.

See docs/decisions/0151-step-boundary.md. See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diloco.algorithm.pieces import Portion
from diloco.learner.final_values import changed
from diloco.learner.store import Float32Array, ParameterStore, Ready, Staged

type Received = Callable[[], Sequence[Float32Array] | None]
"""Returns the last received values of every fragment. None unless all have come."""


class ExchangedModel:
    """Every method is called on the training thread between two steps."""

    def __init__(
        self, store: ParameterStore, portions: Sequence[Portion], received: Received, on_adopt: Callable[[Sequence[str]], None] | None
    ) -> None:
        """
        Args:
            portions: what this process owns of each fragment
            on_adopt: called with the names of the tensors that were just overwritten
        """
        self.store = store
        self.portions = portions
        self.names = [[tensor.name for tensor in portion.fragment.tensors] for portion in portions]
        """The names of the tensors of each fragment."""
        self._received = received
        self._on_adopt = on_adopt

    def warm_up(self) -> None:
        """Do now what would make the first boundaries slow."""
        self.store.warm_up(self.names)

    def stage(self, fragment: int) -> Staged:
        """Keep the fragment's present values, and begin to bring them to the host."""
        return self.store.stage(self.names[fragment])

    def values(self) -> list[Float32Array]:
        """Return copies of the model's present values, for each fragment float32 [size]. Waits for the device."""
        values = []
        for fragment in range(len(self.names)):
            staged = self.stage(fragment)
            values.append(staged.wait().copy())
            staged.release()
        return values

    def adopt(self, fragment: int, ready: Ready) -> None:
        self.store.apply(ready)
        self.store.fill(self.names[fragment])
        if self._on_adopt is not None:
            self._on_adopt(self.names[fragment])

    def take_received(self) -> None:
        """Overwrite the whole model with the last received values."""
        for fragment, value in enumerate(self._received() or ()):
            self.adopt(fragment, self.store.prepare(self.names[fragment], value))

    def finish(self) -> None:
        """Take the final parameters, which the last broadcasts have brought. May be called again.

        All learners end with the same values. What they have trained since the last merge is dropped.
        """
        self.store.reclaim()
        self.take_received()

    def overwritten(self) -> None:
        """Tell the program that all parameters may have been overwritten by something other than `adopt`."""
        if self._on_adopt is not None:
            for names in self.names:
                self._on_adopt(names)

    def changed(self) -> list[str]:
        """Return the tensors that do not hold the final values. None are looked at while the program has lent them to a step."""
        if self.store.lent:
            return []
        return [
            name
            for portion, names, final in zip(self.portions, self.names, self._received() or (), strict=True)
            for name in changed(self.store, names, ((piece.tensor, where) for piece, where in portion.slices()), final)
        ]
