"""Whether the model still holds the job's final parameters once the program has left its loop.

Trainers put other values into the model after the last step: the best checkpoint, a moving average. Then units end with different models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from diloco.learner.store import Float32Array, ParameterStore
from diloco.wording import some


def changed(store: ParameterStore, names: Sequence[str], slices: Iterable[tuple[str, slice]], final: Float32Array) -> list[str]:
    """Return the tensors whose values in this process are not the final ones. Waits for the device.

    Args:
        store: has the parameters, perhaps in a shorter type than float32
        slices: the tensor of each piece in `final`, and the piece's place
        final: float32 [sum of sizes]
    """
    staged = store.stage(names)
    held, expected = staged.wait(), store.rounded(names, final)
    differing = [name for name, where in slices if not np.array_equal(held[where], expected[where])]
    staged.release()
    return list(dict.fromkeys(differing))


def complaint(names: Sequence[str]) -> str:
    """Return a message that says that these tensors hold other values, and what to do."""
    return (
        f"the job is done, and the model no longer holds its final parameters: {some(names, 3)} changed after the last "
        "step, so units would end with different models. Something loaded another state into the model (the best checkpoint, an average "
        "of weights) or updated it without session.step(). Leave it out, or do it after session.close()"
    )
