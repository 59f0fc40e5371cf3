"""The byte-level language model of both frameworks' reference trainers: its shape and first values, in numpy.

A decoder-only transformer with pre-normalisation, learned positions and gated feed-forward blocks (SiLU), without biases except in the
layer norms. `parameter_shapes` is its canonical layout. Weight matrices are [in, out], so that y = x @ w. Both frameworks start from
`initial_parameters`, so equal seeds give equal models in both.

See docs/decisions/0216-figures-and-plots.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 256
"""Every byte is a token."""
NORM_EPSILON = 1e-5
EMBEDDINGS = ("embedding", "position")
"""Canonical tensors that the merge treats as embeddings. A head that is not tied is an output matrix and none of them."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model. The default has 0.47 M parameters in 27 tensors: enough for 24 fragments."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    context: int = 128
    tied: bool = False
    """The output head is the transposed embedding."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not split into {self.heads} heads")

    @property
    def hidden(self) -> int:
        """Width of the gated feed-forward block: 8/3 of the model's, rounded up to a multiple of 8. Its three matrices then cost as much as
        two of width 4x would."""
        return 8 * math.ceil(self.width / 3)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape of every tensor, in a fixed order."""
    width, hidden = config.width, config.hidden
    shapes: dict[str, tuple[int, ...]] = {"embedding": (VOCABULARY, width), "position": (config.context, width)}
    for layer in range(config.layers):
        prefix = f"block.{layer}."
        for norm in ("attention_norm", "feed_norm"):
            shapes[f"{prefix}{norm}.scale"] = (width,)
            shapes[f"{prefix}{norm}.bias"] = (width,)
        for matrix in ("query", "key", "value", "out"):
            shapes[f"{prefix}{matrix}"] = (width, width)
        shapes[f"{prefix}gate"] = (width, hidden)
        shapes[f"{prefix}up"] = (width, hidden)
        shapes[f"{prefix}down"] = (hidden, width)
    shapes["final_norm.scale"] = (width,)
    shapes["final_norm.bias"] = (width,)
    if not config.tied:
        shapes["head"] = (width, VOCABULARY)
    return shapes


def is_decayed(name: str) -> bool:
    """Whether weight decay acts on the tensor: only on matrices, not on embeddings, scales and biases."""
    return name not in EMBEDDINGS and not name.endswith((".scale", ".bias"))


def initial_parameters(config: ModelConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """First values of every tensor, float32 in canonical shape. They depend on `config` and `seed` alone.

    Scales are 1, biases 0, embeddings N(0, 0.02), matrices N(0, 1/in). Matrices that write to the residual stream are smaller by
    sqrt(2 layers), so that its variance does not grow with depth (GPT-2's rule). The head starts at zero: a uniform prediction.
    """
    residual = 1.0 / math.sqrt(2.0 * config.layers)
    generator = np.random.Generator(np.random.Philox(seed))
    values: dict[str, NDArray[np.float32]] = {}
    for name, shape in parameter_shapes(config).items():
        kind = name.rsplit(".", 1)[-1]
        if kind == "scale":
            values[name] = np.ones(shape, np.float32)
        elif kind in ("bias", "head"):
            values[name] = np.zeros(shape, np.float32)
        else:
            deviation = 0.02 if name in EMBEDDINGS else 1.0 / math.sqrt(shape[0])
            if kind in ("out", "down"):
                deviation *= residual
            values[name] = generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
    return values
