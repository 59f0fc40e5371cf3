import numpy as np
import pytest
from diloco.algorithm.layout import TensorSpec
from diloco.canonical import Canonical, lay_out
from hypothesis import given
from hypothesis import strategies as st


def never(name: str) -> bool:
    return False


def test_unmapped_parameters_keep_name_and_shape() -> None:
    parts = lay_out({"w": (2, 3)}, {}, never)
    assert parts["w"].spec == TensorSpec("w", (2, 3), False)


def test_a_stacked_parameter_becomes_one_tensor_a_layer_with_turned_axes() -> None:
    parts = lay_out({"blocks/w": (2, 3, 4)}, {"blocks/w": Canonical("block.{layer}.w", axes=(1, 0), stacked=True)}, never)
    assert [part.spec for part in parts.values()] == [TensorSpec("block.0.w", (4, 3)), TensorSpec("block.1.w", (4, 3))]
    assert [part.layer for part in parts.values()] == [0, 1]


@given(st.permutations(range(3)), st.integers(0, 2**32 - 1))
def test_a_canonical_value_comes_back_as_the_native_one_for_every_order_of_axes(axes: list[int], seed: int) -> None:
    value = np.random.default_rng(seed).standard_normal((2, 3, 5)).astype(np.float32)
    part = lay_out({"w": value.shape}, {"w": Canonical("v", axes=tuple(axes))}, never)["v"]
    canonical = value.transpose(axes)
    assert canonical.shape == part.spec.shape
    np.testing.assert_array_equal(part.to_native(canonical), value)


def test_embedding_mark_of_the_mapping_overrules_the_rule() -> None:
    parts = lay_out({"a": (1,), "b": (1,)}, {"a": Canonical("a", embedding=False)}, lambda name: True)
    assert (parts["a"].spec.embedding, parts["b"].spec.embedding) == (False, True)


def test_stacks_are_those_of_the_rule_or_of_the_mapping_in_canonical_axes() -> None:
    parts = lay_out(
        {"a": (2, 3, 4), "b": (2, 3, 4), "c": (5, 2, 3, 4), "d": (3, 4)},
        {
            "b": Canonical("b", axes=(2, 0, 1), stack_axes=2),
            "c": Canonical("c.{layer}", stacked=True),
        },
        never,
        lambda name: 0 if name == "d" else 1,
    )
    found = {name: (part.spec.shape, part.spec.stack_axes) for name, part in parts.items()}
    assert found == {"a": ((2, 3, 4), 1), "b": ((4, 2, 3), 2), "d": ((3, 4), 0)} | {f"c.{i}": ((2, 3, 4), 1) for i in range(5)}
    assert not any(part.spec.stack_axes for part in lay_out({"experts/w": (2, 3, 4)}, {}, never).values()), "without a rule there are none"


@pytest.mark.parametrize(
    ("shapes", "canonical", "says"),
    [
        ({"w": (2, 2)}, {"w": Canonical("w", stack_axes=3)}, "parameter 'w': 3 leading axes"),
        ({"w": (1,)}, {"v": "x"}, "does not have: v"),
        ({"w": (1,), "v": (1,)}, {"w": "v"}, "same canonical name 'v'"),
        ({"w": (2, 2)}, {"w": Canonical("w", stacked=True)}, "contains {layer}"),
        ({"w": (2, 2)}, {"w": "w.{layer}"}, "contains {layer}"),
        ({"w": (2, 2)}, {"w": Canonical("w", axes=(0, 0))}, "no permutation"),
        ({"w": ()}, {"w": Canonical("w.{layer}", stacked=True)}, "scalar"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_by_name(
    shapes: dict[str, tuple[int, ...]], canonical: dict[str, Canonical | str], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        lay_out(shapes, canonical, never)


def test_a_value_of_another_shape_is_refused() -> None:
    part = lay_out({"w": (2, 3)}, {}, never)["w"]
    with pytest.raises(ValueError, match="'w' has shape"):
        part.to_native(np.zeros((3, 2), np.float32))
