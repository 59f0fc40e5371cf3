"""What every store of parameters does at a step boundary, in all frameworks and types alike."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diloco.canonical import Canonical
from diloco.jax import TreeStore
from diloco.learner.arrays import ArrayStore
from diloco.learner.store import ParameterStore
from diloco.torch import ModuleStore
from hypothesis import given
from hypothesis import strategies as st

NAMES = ["matrix", "layer.1", "vector", "scalar", "layer.0"]
"""In another order than they lie in the model."""
SHAPES = {"matrix": (3, 5), "layer.0": (2, 4), "layer.1": (2, 4), "vector": (7,), "scalar": ()}
SIZE = 15 + 8 + 7 + 1 + 8


@dataclass
class Model:
    """A store, and a step that adds 1 to every parameter."""

    store: ParameterStore
    train: Callable[[], None]


def in_numpy() -> Model:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}

    def train() -> None:
        for array in arrays.values():
            array += 1

    return Model(ArrayStore(arrays), train)


def in_torch(matrix: torch.dtype, vector: torch.dtype) -> Model:
    """The matrix lies turned, the layers are stacked and turned, and the types are mixed."""
    zeros = {
        "matrix": torch.zeros(5, 3, dtype=matrix),
        "layers": torch.zeros(2, 4, 2, dtype=matrix),
        "vector": torch.zeros(7, dtype=vector),
        "scalar": torch.zeros((), dtype=vector),
    }
    module = torch.nn.ParameterDict({name: torch.nn.Parameter(value) for name, value in zeros.items()})
    canonical: dict[str, Canonical | str] = {
        "matrix": Canonical("matrix", axes=(1, 0)),
        "layers": Canonical("layer.{layer}", axes=(1, 0), stacked=True),
    }

    @torch.no_grad()
    def train() -> None:
        for parameter in module.parameters():
            parameter.add_(1)

    return Model(ModuleStore(module, canonical=canonical), train)


def in_jax(matrix: jnp.dtype, vector: jnp.dtype) -> Model:
    tree = {
        "matrix": jnp.zeros((5, 3), matrix),
        "layers": jnp.zeros((2, 4, 2), matrix),
        "vector": jnp.zeros(7, vector),
        "scalar": jnp.zeros((), vector),
    }
    canonical: dict[str, Canonical | str] = {
        "matrix": Canonical("matrix", axes=(1, 0)),
        "layers": Canonical("layer.{layer}", axes=(1, 0), stacked=True),
    }
    store = TreeStore(tree, canonical=canonical)
    step = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf + 1, params), donate_argnums=0)
    return Model(store, lambda: store.take_back(step(store.hand_out())))


MODELS: dict[str, Callable[[], Model]] = {
    "numpy": in_numpy,
    "torch float32": lambda: in_torch(torch.float32, torch.float32),
    "torch bfloat16": lambda: in_torch(torch.bfloat16, torch.float32),
    "torch float16 and float64": lambda: in_torch(torch.float16, torch.float64),
    "jax float32": lambda: in_jax(jnp.dtype(jnp.float32), jnp.dtype(jnp.float32)),
    "jax bfloat16": lambda: in_jax(jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    made = MODELS[request.param]()
    made.store.warm_up([NAMES])
    return made


def some_values(seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(SIZE, dtype=np.float32)
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    ("name", "matrix", "vector"),
    [
        ("numpy", "float32", "float32"),
        ("torch bfloat16", "bfloat16", "float32"),
        ("torch float16 and float64", "float16", "float64"),
        ("jax bfloat16", "bfloat16", "float32"),
    ],
)
def test_it_says_in_which_types_the_framework_keeps_the_tensors(name: str, matrix: str, vector: str) -> None:
    like_matrix = dict.fromkeys(["matrix", "layer.0", "layer.1"], matrix)
    assert MODELS[name]().store.dtypes() == like_matrix | dict.fromkeys(["vector", "scalar"], vector)


def test_the_model_is_what_it_was_after_warming_up(model: Model) -> None:
    assert not model.store.stage(NAMES).wait().any()


def test_what_is_applied_is_staged_again_as_the_parameters_types_keep_it(model: Model) -> None:
    values = some_values()
    model.store.apply(model.store.prepare(NAMES, values))
    staged = model.store.stage(NAMES).wait()
    assert (staged.dtype.name, staged.shape) == ("float32", (SIZE,))
    assert staged.tobytes() == model.store.rounded(NAMES, values).tobytes()
    np.testing.assert_allclose(staged, values, rtol=2**-8)  # half a unit of bfloat16's 8 digits


def test_a_group_may_be_cut_otherwise_than_it_was_applied(model: Model) -> None:
    values = some_values()
    model.store.apply(model.store.prepare(NAMES, values))
    whole = model.store.rounded(NAMES, values)
    np.testing.assert_array_equal(model.store.stage(["layer.0", "vector"]).wait(), np.concatenate([whole[31:], whole[23:30]]))


def test_preparing_changes_nothing_and_applying_may_be_repeated(model: Model) -> None:
    ready = model.store.prepare(NAMES, some_values())
    assert not model.store.stage(NAMES).wait().any()
    model.store.apply(ready)
    first = model.store.stage(NAMES).wait().copy()
    model.store.apply(ready)
    np.testing.assert_array_equal(model.store.stage(NAMES).wait(), first)


def test_what_is_staged_stays_as_it_was_while_training_goes_on(model: Model) -> None:
    staged = []
    for _ in range(4):
        staged.append(model.store.stage(NAMES))
        model.train()
    # Waited for late, and the last one first: nothing depends on when the sending thread comes to it.
    assert [set(one.wait().tolist()) for one in reversed(staged)] == [{3.0}, {2.0}, {1.0}, {0.0}]


def test_memory_that_was_released_may_be_used_again_and_no_other(model: Model) -> None:
    held = [model.store.stage(NAMES) for _ in range(3)]
    values = [one.wait() for one in held]
    held[0].release()
    held[0].release()
    model.train()
    for _ in range(3):
        again = model.store.stage(NAMES)
        assert set(again.wait().tolist()) == {1.0}
        again.release()
    assert not values[1].any()
    assert not values[2].any()


def test_the_array_is_the_callers_to_write_to(model: Model) -> None:
    staged = model.store.stage(NAMES)
    staged.wait()[...] = 9
    assert not model.store.stage(NAMES).wait().any()


def test_values_are_laid_out_on_another_thread_while_the_program_trains(model: Model) -> None:
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(model.store.prepare, NAMES, some_values(seed)) for seed in range(20)]
        for ready in coming:
            model.train()
            model.store.apply(ready.result())
    assert model.store.stage(NAMES).wait().tobytes() == model.store.rounded(NAMES, some_values(19)).tobytes()


def test_float32_parameters_are_not_rounded_and_not_copied() -> None:
    values = some_values()
    for name in ("numpy", "torch float32", "jax float32"):
        assert MODELS[name]().store.rounded(NAMES, values) is values


def test_a_model_that_is_not_trained_never_differs_from_what_it_adopted(model: Model) -> None:
    for seed in range(20):
        base = some_values(seed)
        model.store.apply(model.store.prepare(NAMES, base))
        assert not (model.store.stage(NAMES).wait() - model.store.rounded(NAMES, base)).any()


def test_other_sizes_types_and_names_are_refused(model: Model) -> None:
    wrong: list[Any] = [np.zeros(SIZE - 1, np.float32), np.zeros(SIZE), np.zeros((1, SIZE), np.float32)]
    for values in wrong:
        with pytest.raises(ValueError, match=r"expected float32 \[39\]"):
            model.store.prepare(NAMES, values)
        with pytest.raises(ValueError, match=r"expected float32 \[39\]"):
            model.store.rounded(NAMES, values)
    for names in (["matrix", "layer.2"], ["layers"]):
        with pytest.raises(KeyError):
            model.store.stage(names)
        with pytest.raises(KeyError):
            model.store.prepare(names, some_values())


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=SIZE, max_size=SIZE))
@pytest.mark.parametrize("name", ["torch bfloat16", "torch float16 and float64", "jax bfloat16"])
def test_rounding_is_that_of_the_model_for_all_values(name: str, numbers: list[float]) -> None:
    model, values = MODELS[name](), np.array(numbers, np.float32)
    model.store.apply(model.store.prepare(NAMES, values))
    assert model.store.stage(NAMES).wait().tobytes() == model.store.rounded(NAMES, values).tobytes()
