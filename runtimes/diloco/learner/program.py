"""What the training program of a process brings to its job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diloco.algorithm.fragments import Fragment
from diloco.algorithm.layout import Layout
from diloco.learner.inner_state import InnerState
from diloco.learner.store import ParameterStore


@dataclass(frozen=True, slots=True)
class Program:
    store: ParameterStore
    layout: Layout
    """The layout of the store's parameters."""
    fragments: Sequence[Fragment]
    """The fragments into which this job cuts the layout."""
    on_adopt: Callable[[Sequence[str]], None] | None = None
    """Called with the names of tensors that were just overwritten."""
    inner: InnerState | None = None
    """The state beside the parameters. None if the framework's adapter does not know it."""
