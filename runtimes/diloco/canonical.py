"""The canonical form of a model's parameters, and how a framework's own layout maps to it.

Learners of one job may use different frameworks, as long as they name the same tensors with the same shapes. `Canonical` says for one
parameter of a framework what it is called canonically, how its axes lie, and whether it stacks the tensors of several layers;
`lay_out` turns such a mapping into `Part`s, which translate values in both directions. Knows numpy only.

See docs/decisions/0062-merge-numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from diloco.algorithm.layout import LayoutError, TensorSpec

LAYER = "{layer}"
"""Stands for the layer's index, from 0, in the canonical name of a stacked parameter."""


@dataclass(frozen=True)
class Canonical:
    """How one parameter of a framework appears in canonical form."""

    name: str
    """The canonical name; a stacked parameter's contains `{layer}`."""
    axes: tuple[int, ...] | None = None
    """The canonical value is `numpy.transpose(value, axes)`, for a stacked parameter of each layer's slice. None if the axes keep their
    order."""
    stacked: bool = False
    """The leading axis counts layers (as `jax.lax.scan` wants it); every layer's slice is a canonical tensor of its own."""
    embedding: bool | None = None
    """Whether the merge treats it as an embedding (plain average). None if the adapter's own rule decides."""
    stack_axes: int | None = None
    """Number of leading axes of the canonical tensor that count separate matrices, such as experts, each merged by itself. None if `stacks`
    decides."""


@dataclass(frozen=True)
class Part:
    """One canonical tensor and where it lies in the framework's parameters."""

    spec: TensorSpec
    parameter: str
    """Name of the framework's parameter."""
    layer: int | None
    """Index along the parameter's leading axis; None if the tensor is the whole parameter."""
    axes: tuple[int, ...] | None

    def to_native(self, value: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a view of a canonical value with the framework's order of axes. Raises ValueError if its shape is not `spec`'s."""
        if value.shape != tuple(self.spec.shape):
            raise ValueError(f"tensor {self.spec.name!r} has shape {tuple(self.spec.shape)}, got {value.shape}")
        return value if self.axes is None else np.transpose(value, np.argsort(self.axes))


def lay_out(
    shapes: Mapping[str, tuple[int, ...]],
    canonical: Mapping[str, Canonical | str],
    is_embedding: Callable[[str], bool],
    stacks: Callable[[str], int] | None = None,
) -> dict[str, Part]:
    """Return the canonical tensors of a model, by canonical name, sorted.

    Raises LayoutError, naming the parameter, if the mapping does not fit the model, or two tensors have one canonical name.

    Args:
        shapes: the framework's parameters.
        canonical: the canonical form, or only the canonical name, of some parameters. The others keep their own name.
        is_embedding: decides by the framework's name if `Canonical.embedding` is None.
        stacks: the same for `Canonical.stack_axes`. Without it there are no stacks.
    """
    if unknown := sorted(set(canonical) - set(shapes)):
        raise LayoutError(
            f"canonical maps parameters that the model does not have: {', '.join(unknown)} (it has {', '.join(sorted(shapes))}; "
            "of tied parameters only the first name counts)"
        )
    parts: dict[str, Part] = {}
    for parameter, shape in shapes.items():
        given = canonical.get(parameter, parameter)
        rule = Canonical(given) if isinstance(given, str) else given
        for part in _parts(parameter, shape, rule, is_embedding, stacks):
            if (other := parts.get(part.spec.name)) is not None:
                raise LayoutError(f"parameters {other.parameter!r} and {parameter!r} have the same canonical name {part.spec.name!r}")
            parts[part.spec.name] = part
    return dict(sorted(parts.items()))


def _parts(
    parameter: str,
    shape: tuple[int, ...],
    rule: Canonical,
    is_embedding: Callable[[str], bool],
    stacks: Callable[[str], int] | None,
) -> list[Part]:
    if rule.stacked != (LAYER in rule.name):
        raise LayoutError(
            f"parameter {parameter!r}: a stacked parameter's canonical name contains {LAYER}, and no other's does; got {rule}"
        )
    if rule.stacked and not shape:
        raise LayoutError(f"parameter {parameter!r} is a scalar and cannot stack layers")
    layer_shape = shape[1:] if rule.stacked else shape
    if rule.axes is not None and sorted(rule.axes) != list(range(len(layer_shape))):
        raise LayoutError(f"parameter {parameter!r}: axes {rule.axes} are no permutation of the axes of shape {layer_shape}")
    canonical_shape = layer_shape if rule.axes is None else tuple(layer_shape[axis] for axis in rule.axes)
    embedding = is_embedding(parameter) if rule.embedding is None else rule.embedding
    axes = 0
    if rule.stack_axes is not None:
        axes = rule.stack_axes
    elif stacks is not None:
        axes = int(stacks(parameter))
    if not 0 <= axes <= len(canonical_shape):
        raise LayoutError(f"parameter {parameter!r}: {axes} leading axes of shape {canonical_shape} cannot count matrices of a stack")
    spec = TensorSpec(rule.name, canonical_shape, embedding, axes)
    if not rule.stacked:
        return [Part(spec, parameter, None, rule.axes)]
    return [Part(replace(spec, name=rule.name.replace(LAYER, str(layer))), parameter, layer, rule.axes) for layer in range(shape[0])]
