"""A frozen base has one digest in all frameworks, whatever the order of axes in which they keep it."""

from __future__ import annotations

import numpy as np
import pytest
from builders.frameworks.adapter import MakeBase
from builders.frameworks.registry import FRAMEWORKS
from diloco.algorithm.frozen import BLOCK, digest
from diloco.canonical import Canonical

CHANCE = np.random.default_rng(1)
MATRIX = CHANCE.standard_normal((6, 10), np.float32)
LAYERS = CHANCE.integers(-128, 128, (3, 4, 5), np.int8)
PHASES = (MATRIX + 1j * MATRIX[::-1]).astype(np.complex64)

type Digests = dict[str, tuple[tuple[int, ...], int]]


@pytest.fixture(params=[name for name, each in FRAMEWORKS.items() if each.base])
def make(request: pytest.FixtureRequest) -> MakeBase:
    base = FRAMEWORKS[request.param].base
    assert base is not None
    return base


def digests(make: MakeBase, values: dict[str, np.ndarray], canonical: dict[str, Canonical | str], **dtypes: str) -> Digests:
    return {tensor.name: (tensor.shape, tensor.digest) for tensor in make(values, canonical, dtypes).frozen()}


@pytest.mark.parametrize("turned", [False, True])
def test_the_digest_is_that_of_the_canonical_values(make: MakeBase, turned: bool) -> None:
    """With the canonical matrix, its first axis last where `turned`, and layers that are stacked and turned."""
    values = {"matrix": np.ascontiguousarray(MATRIX.T) if turned else MATRIX, "layers": LAYERS, "phases": PHASES}
    canonical: dict[str, Canonical | str] = {
        "matrix": Canonical("weight", axes=(1, 0) if turned else None),
        "layers": Canonical("layer.{layer}", stacked=True, axes=(1, 0)),
    }
    assert digests(make, values, canonical) == {
        "weight": ((6, 10), digest((6, 10), (0, 0), MATRIX)),
        **{f"layer.{index}": ((5, 4), digest((5, 4), (0, 0), layer.T)) for index, layer in enumerate(LAYERS)},
        "phases": ((6, 10, 2), digest((6, 10, 2), (0, 0, 0), np.stack([PHASES.real, PHASES.imag], -1))),
    }


def test_a_base_in_a_shorter_type_is_that_of_its_values(make: MakeBase) -> None:
    # bfloat16 is the upper half of float32, rounded to nearest even: half a unit less one bit is added, and the last bit kept.
    bits = MATRIX.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    assert digests(make, {"matrix": MATRIX}, {}, matrix="bfloat16") == {"matrix": ((6, 10), digest((6, 10), (0, 0), rounded))}


def test_a_tensor_of_many_blocks_is_digested_as_one(make: MakeBase) -> None:
    values = np.arange(BLOCK + 10, dtype=np.float32)
    assert digests(make, {"base": values}, {}) == {"base": (values.shape, digest(values.shape, (0,), values))}
