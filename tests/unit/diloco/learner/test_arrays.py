import numpy as np
import pytest
from diloco.learner.arrays import ArrayStore


def test_what_is_read_does_not_change_with_later_steps() -> None:
    store = ArrayStore({"b": np.zeros((2, 3), np.float32), "a": np.ones(4, np.float32)}, embeddings=["b"])
    before = store.read(["b"])
    store.arrays["b"] += 1
    assert before["b"].sum() == 0
    assert [(spec.name, spec.shape, spec.embedding) for spec in store.specs()] == [("a", (4,), False), ("b", (2, 3), True)]


def test_writing_changes_the_callers_array_in_place() -> None:
    mine = np.zeros(3, np.float32)
    ArrayStore({"a": mine}).write({"a": np.arange(3, dtype=np.float32)})
    assert mine.tolist() == [0, 1, 2]


def test_other_shapes_types_and_names_are_refused() -> None:
    store = ArrayStore({"a": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=r"'a' has shape \(3,\), got \(1,\)"):
        store.write({"a": np.zeros(1, np.float32)})
    with pytest.raises(KeyError):
        store.read(["b"])
    with pytest.raises(TypeError, match="float64"):
        ArrayStore({"a": np.zeros(3)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="do not exist: b"):
        ArrayStore({"a": np.zeros(3, np.float32)}, embeddings=["b"])
