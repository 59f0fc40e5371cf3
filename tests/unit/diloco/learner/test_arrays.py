import numpy as np
import pytest
from diloco.learner.arrays import ArrayStore


def test_what_is_staged_does_not_change_with_later_steps() -> None:
    store = ArrayStore({"b": np.zeros((2, 3), np.float32), "a": np.ones(4, np.float32)}, embeddings=["b"])
    staged = store.stage(["b", "a"])
    store.arrays["b"] += 1
    assert staged.wait().tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert [(spec.name, spec.shape, spec.embedding) for spec in store.specs()] == [("a", (4,), False), ("b", (2, 3), True)]


def test_released_memory_is_used_by_the_next_stage_and_that_in_use_is_not() -> None:
    store = ArrayStore({"a": np.zeros(3, np.float32), "b": np.ones(2, np.float32)})
    store.warm_up([["a"], ["b"]])
    first, second = store.stage(["a"]), store.stage(["b"])
    assert not np.shares_memory(first.wait(), second.wait())
    held = first.wait()
    first.release()
    first.release()
    third, fourth = store.stage(["b"]), store.stage(["b"])
    assert np.shares_memory(third.wait(), held)
    assert not np.shares_memory(third.wait(), fourth.wait())


def test_applying_changes_the_callers_array_in_place() -> None:
    mine = np.zeros(3, np.float32)
    store = ArrayStore({"a": mine, "b": np.zeros((1, 2), np.float32)})
    store.apply(store.prepare(["b", "a"], np.arange(5, dtype=np.float32)))
    assert mine.tolist() == [2, 3, 4]
    assert store.arrays["b"].tolist() == [[0, 1]]


def test_other_sizes_types_and_names_are_refused() -> None:
    store = ArrayStore({"a": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=r"a: expected float32 \[3\], got float32 \[1\]"):
        store.prepare(["a"], np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"got float64 \[3\]"):
        store.rounded(["a"], np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        store.stage(["b"])
    with pytest.raises(TypeError, match="float64"):
        ArrayStore({"a": np.zeros(3)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="do not exist: b"):
        ArrayStore({"a": np.zeros(3, np.float32)}, embeddings=["b"])
    with pytest.raises(ValueError, match="stacks names tensors that do not exist: c"):
        ArrayStore({"a": np.zeros(3, np.float32)}, stacks={"a": 1, "c": 1})
