"""The model that a process trains, as its job sees it: by fragment, and of each what this process owns. One process owns all.

See docs/decisions/0151-step-boundary.md. See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diloco.algorithm.pieces import Portion
from diloco.learner.final_values import changed
from diloco.learner.store import Float32Array, ParameterStore, Ready, Staged

type Received = Callable[[], Sequence[Float32Array] | None]
"""The last received values of every fragment; None unless all have come."""


class ExchangedModel:
    """Every method is called on the training thread between two steps."""

    def __init__(
        self, store: ParameterStore, portions: Sequence[Portion], received: Received, on_adopt: Callable[[Sequence[str]], None] | None
    ) -> None:
        """`portions`: what this process owns of each fragment. `on_adopt` is called with the names of the tensors that were just
        overwritten."""
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
        """Keep what the model has now of the fragment, and begin to bring it to the host."""
        return self.store.stage(self.names[fragment])

    def values(self) -> list[Float32Array]:
        """Return what the model has now, for each fragment float32 [size]. The copies are the caller's. Waits for the device."""
        values = []
        for fragment in range(len(self.names)):
            staged = self.stage(fragment)
            values.append(staged.wait().copy())
            staged.release()
        return values

    def adopt(self, fragment: int, ready: Ready) -> None:
        """Overwrite the fragment."""
        self.store.apply(ready)
        self.store.fill(self.names[fragment])
        if self._on_adopt is not None:
            self._on_adopt(self.names[fragment])

    def take_received(self) -> None:
        """Put the last received values back in the place of what else is in the model."""
        for fragment, value in enumerate(self._received() or ()):
            self.adopt(fragment, self.store.prepare(self.names[fragment], value))

    def finish(self) -> None:
        """Take the final parameters, also again. The last broadcasts came before: all learners end with the same values, without what they
        trained since."""
        self.store.reclaim()
        self.take_received()

    def overwritten(self) -> None:
        """Tell the program that all parameters may have changed otherwise than by `adopt`."""
        if self._on_adopt is not None:
            for names in self.names:
                self._on_adopt(names)

    def changed(self) -> list[str]:
        """Return the tensors of which the model does not hold the final values. What the program has lent to a step is not looked at."""
        if self.store.lent:
            return []
        return [
            name
            for portion, names, final in zip(self.portions, self.names, self._received() or (), strict=True)
            for name in changed(self.store, names, ((piece.tensor, where) for piece, where in portion.slices()), final)
        ]
