"""Event files as TensorBoard itself reads them."""

from __future__ import annotations

from pathlib import Path


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (outer step, value), in the order in which TensorBoard shows them, nothing sampled away."""
    # Only here: an import of half a second.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def steps_of(folder: Path, tag: str = "loss") -> list[int]:
    """The outer steps at which TensorBoard has a value of `tag`."""
    return [step for step, _ in scalars(folder).get(tag, [])]
