"""All adapters. A further one is a module beside `on_torch.py`, and a line here: the whole contract suite runs with it."""

from __future__ import annotations

from builders.frameworks.adapter import Framework
from builders.frameworks.on_jax import JAX
from builders.frameworks.on_numpy import NUMPY
from builders.frameworks.on_torch import TORCH

FRAMEWORKS: dict[str, Framework] = {"numpy": NUMPY, "torch": TORCH, "jax": JAX}
