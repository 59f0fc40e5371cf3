"""What every store of parameters does at a step boundary, in all frameworks and types alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from builders.frameworks.adapter import NAMES, SHAPES, SIZE, Model, NamedStore
from builders.frameworks.registry import FRAMEWORKS
from hypothesis import given
from hypothesis import strategies as st

TYPES = [(name, *types) for name, each in FRAMEWORKS.items() for types in each.types]
NAMED = [types for types in TYPES if FRAMEWORKS[types[0]].reads_by_name]
ROUNDED = [types for types in TYPES if types[1] != "float32"]
PLAIN = [types for types in TYPES if types[1:] == ("float32", "float32")]


def a_model(name: str, matrix: str, vector: str) -> Model:
    made = FRAMEWORKS[name].model(matrix, vector)
    made.store.warm_up([NAMES])
    return made


@pytest.fixture(params=TYPES, ids=" ".join)
def model(request: pytest.FixtureRequest) -> Model:
    return a_model(*request.param)


def by_name(model: Model) -> NamedStore:
    assert isinstance(model.store, NamedStore)
    return model.store


@pytest.fixture(params=NAMED, ids=" ".join)
def named(request: pytest.FixtureRequest) -> NamedStore:
    return by_name(a_model(*request.param))


def some_values(seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(SIZE, dtype=np.float32)
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(("name", "matrix", "vector"), TYPES)
def test_it_says_in_which_types_the_framework_keeps_the_tensors(name: str, matrix: str, vector: str) -> None:
    like_matrix = dict.fromkeys(["matrix", "layer.0", "layer.1"], matrix)
    assert a_model(name, matrix, vector).store.dtypes() == like_matrix | dict.fromkeys(["vector", "scalar"], vector)


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


@pytest.mark.parametrize(("name", "matrix", "vector"), PLAIN)
def test_float32_parameters_are_not_rounded_and_not_copied(name: str, matrix: str, vector: str) -> None:
    values = some_values()
    assert a_model(name, matrix, vector).store.rounded(NAMES, values) is values


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
@pytest.mark.parametrize(("name", "matrix", "vector"), ROUNDED)
def test_rounding_is_that_of_the_model_for_all_values(name: str, matrix: str, vector: str, numbers: list[float]) -> None:
    model, values = a_model(name, matrix, vector), np.array(numbers, np.float32)
    model.store.apply(model.store.prepare(NAMES, values))
    assert model.store.stage(NAMES).wait().tobytes() == model.store.rounded(NAMES, values).tobytes()


def test_what_is_written_is_read_again_and_the_other_tensors_stay(named: NamedStore) -> None:
    value = np.arange(8, dtype=np.float32).reshape(SHAPES["layer.1"])
    value.flags.writeable = False
    named.write({"layer.1": value})
    read = dict(named.read(NAMES))
    np.testing.assert_array_equal(read.pop("layer.1"), value)
    assert {name: array.shape for name, array in read.items()} == {name: shape for name, shape in SHAPES.items() if name != "layer.1"}
    assert not any(array.any() for array in read.values())
    assert {array.dtype.name for array in read.values()} == {"float32"}


def test_reads_and_writes_share_no_memory_with_the_caller(named: NamedStore) -> None:
    value = np.ones(SHAPES["matrix"], np.float32)
    named.write({"matrix": value})
    value[...] = 7
    read = named.read(["matrix"])["matrix"]
    np.testing.assert_array_equal(read, np.ones(SHAPES["matrix"]))
    read[...] = 5
    np.testing.assert_array_equal(named.read(["matrix"])["matrix"], np.ones(SHAPES["matrix"]))


@pytest.mark.parametrize(("name", "matrix", "vector"), NAMED)
def test_what_was_read_stays_as_it_was_while_training_goes_on(name: str, matrix: str, vector: str) -> None:
    model = a_model(name, matrix, vector)
    before = by_name(model).read(NAMES)
    model.train()
    assert not any(array.any() for array in before.values())
    assert all((array == 1).all() for array in by_name(model).read(NAMES).values())


def test_what_is_written_or_read_under_another_name_or_in_another_shape_is_refused(named: NamedStore) -> None:
    with pytest.raises(KeyError):
        named.read(["layers"])
    with pytest.raises(KeyError):
        named.write({"layers": np.zeros((2, 2, 4), np.float32)})
    with pytest.raises(ValueError, match="shape"):
        named.write({"matrix": np.zeros((5, 3), np.float32)})
