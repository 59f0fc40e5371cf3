"""The canonical layout of a model."""

import pytest
from diloco.algorithm.layout import Layout, LayoutError, TensorSpec


def test_order_of_the_tensors_does_not_change_a_layout() -> None:
    a, b = TensorSpec("a", (2, 3)), TensorSpec("b", ())
    assert Layout([b, a]) == Layout([a, b])
    assert Layout([b, a]).fingerprint == Layout([a, b]).fingerprint
    assert Layout([b, a]).tensors == (a, b)
    assert Layout([b, a]).size == 7  # 2*3 + 1


@pytest.mark.parametrize(
    "other",
    [TensorSpec("wte", (256, 64)), TensorSpec("wpe", (256, 128)), TensorSpec("wte", (128, 256)), TensorSpec("wte", (256, 128), True)],
)
def test_name_shape_and_embedding_mark_are_in_the_fingerprint(other: TensorSpec) -> None:
    assert Layout([other]).fingerprint != Layout([TensorSpec("wte", (256, 128))]).fingerprint


def test_difference_names_each_tensor_and_both_shapes() -> None:
    here = Layout([TensorSpec("wte", (256, 128), True), TensorSpec("bias", (4,)), TensorSpec("same", (1,)), TensorSpec("mark", (2,), True)])
    job = Layout([TensorSpec("wte", (256, 64), True), TensorSpec("scale", (4,)), TensorSpec("same", (1,)), TensorSpec("mark", (2,))])
    assert here.difference(job) == [
        "tensor bias: (4) here, not in the job",
        "tensor mark: an embedding here, not an embedding in the job",
        "tensor scale: missing here, (4) in the job",
        "tensor wte: shape (256,128) here, (256,64) in the job",
    ]
    assert here.difference(here) == []


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([], "no tensors"),
        ([TensorSpec("a", (1,)), TensorSpec("a", (2,))], "tensor a: the name is used twice"),
        ([TensorSpec("a", (3, 0))], r"tensor a: shape \(3,0\) has no elements"),
        ([TensorSpec("a", (-1,))], "tensor a: shape .* negative"),
        ([TensorSpec("", (1,))], "has no name"),
    ],
)
def test_impossible_layouts_are_refused_by_name(tensors: list[TensorSpec], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        Layout(tensors)
