"""The canonical layout of a model."""

import pytest
from diloco.algorithm.layout import FrozenTensor, Layout, LayoutError, TensorSpec


def test_order_of_the_tensors_does_not_change_a_layout() -> None:
    a, b = TensorSpec("a", (2, 3)), TensorSpec("b", ())
    assert Layout([b, a]) == Layout([a, b])
    assert Layout([b, a]).fingerprint == Layout([a, b]).fingerprint
    assert Layout([b, a]).tensors == (a, b)
    assert Layout([b, a]).size == 7  # 2*3 + 1


@pytest.mark.parametrize(
    "other",
    [
        TensorSpec("wte", (256, 64)),
        TensorSpec("wpe", (256, 128)),
        TensorSpec("wte", (128, 256)),
        TensorSpec("wte", (256, 128), True),
        TensorSpec("wte", (256, 128), stack_axes=1),
    ],
)
def test_name_shape_and_what_decides_the_merge_are_in_the_fingerprint(other: TensorSpec) -> None:
    assert Layout([other]).fingerprint != Layout([TensorSpec("wte", (256, 128))]).fingerprint


def a_stack(axes: int) -> TensorSpec:
    return TensorSpec("experts", (2, 3, 4), stack_axes=axes)


def test_difference_names_each_tensor_and_both_shapes() -> None:
    same = TensorSpec("same", (1,))
    here = Layout([TensorSpec("wte", (256, 128), True), TensorSpec("bias", (4,)), same, TensorSpec("mark", (2,), True), a_stack(0)])
    job = Layout([TensorSpec("wte", (256, 64), True), TensorSpec("scale", (4,)), same, TensorSpec("mark", (2,)), a_stack(1)])
    assert here.difference(job) == [
        "tensor bias: (4) here, not in the job",
        "tensor experts: no stack here, a stack along 1 leading axis in the job; say it in join(…, stacks=…)",
        "tensor mark: an embedding here, not an embedding in the job",
        "tensor scale: missing here, (4) in the job",
        "tensor wte: shape (256,128) here, (256,64) in the job",
    ]
    assert here.difference(here) == []


def test_a_frozen_base_is_part_of_what_makes_layouts_equal() -> None:
    trained = [TensorSpec("adapter", (4,)), TensorSpec("head", (2,))]
    base = [FrozenTensor("base", (3,), 1), FrozenTensor("same", (2,), 7), FrozenTensor("shape", (1, 2), 3), FrozenTensor("old", (1,), 1)]
    job = Layout(trained, base)
    here = Layout(
        [trained[0], TensorSpec("same", (2,))],
        [FrozenTensor("base", (3,), 2), FrozenTensor("head", (2,), 5), FrozenTensor("shape", (2, 1), 3), FrozenTensor("new", (1,), 1)],
    )
    assert here.difference(job) == [
        "tensor head: frozen here, (2) in the job",
        "tensor same: (2) here, frozen in the job",
        "frozen tensor base: other values than in the job; every unit must load the same ones",
        "frozen tensor new: not in the job",
        "frozen tensor old: missing here",
        "frozen tensor shape: shape (2,1) here, (1,2) in the job",
    ]
    assert job.difference(Layout(trained[::-1], base[::-1])) == []
    assert job.fingerprint == Layout(trained).fingerprint
    with pytest.raises(LayoutError, match="tensor head: the name is used twice"):
        Layout(trained, [FrozenTensor("head", (2,), 1)])


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([], "no tensors"),
        ([TensorSpec("a", (1,)), TensorSpec("a", (2,))], "tensor a: the name is used twice"),
        ([TensorSpec("a", (3, 0))], r"tensor a: shape \(3,0\) has no elements"),
        ([TensorSpec("a", (-1,))], "tensor a: shape .* negative"),
        ([TensorSpec("", (1,))], "has no name"),
        ([TensorSpec("a", (2,), stack_axes=2)], r"tensor a: shape \(2\) cannot be a stack along 2 leading axes"),
        ([TensorSpec("a", (2, 2), stack_axes=-1)], "cannot be a stack along -1"),
        ([TensorSpec(name, (1 << 17, 1, 2), stack_axes=1) for name in "abc"], "393216 matrices, and 262144 are the most"),
    ],
)
def test_impossible_layouts_are_refused_by_name(tensors: list[TensorSpec], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        Layout(tensors)
