"""Merging outer gradients."""

import math
from collections.abc import Collection
from typing import get_args

import numpy as np
import pytest
from builders.core import a_job, a_push, a_seeded_core, metadata
from builders.exploration import examples
from diloco.algorithm import codec
from diloco.algorithm import merge as merging
from diloco.algorithm.effects import Pull
from diloco.algorithm.fragments import Fragment, make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.algorithm.merge import norm, norms
from diloco.contract import MergeMethod, Training
from diloco.kernels import Vector
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from numpy.typing import NDArray


def fragment_of(*sizes: int, embeddings: Collection[int] = ()) -> Fragment:
    (fragment,) = make_fragments(Layout(TensorSpec(f"w{i}", (n, 1), i in embeddings) for i, n in enumerate(sizes)), 1)
    return fragment


def plain(fragment: Fragment, deltas: list[NDArray[np.float32]]) -> tuple[list[Vector], list[tuple[float, ...]]]:
    """The gradients with these values, and their norms."""
    return [Vector.of_values(delta) for delta in deltas], [norms(fragment, delta) for delta in deltas]


def merge(
    fragment: Fragment, deltas: list[NDArray[np.float32]], weights: list[float], method: MergeMethod, embeddings: MergeMethod
) -> NDArray[np.float32]:
    return merging.merge(fragment, *plain(fragment, deltas), weights, method, embeddings).delta


def vector(*x: float) -> NDArray[np.float32]:
    return np.array(x, np.float32)


def reference_rda(deltas: list[NDArray[np.float32]], weights: list[float]) -> NDArray[np.float64]:
    """The formula as written, in float64."""
    d, w = np.stack(deltas).astype(float), np.asarray(weights, float)[:, None]
    norms = np.linalg.norm(d, axis=1, keepdims=True)
    phi = np.divide(d, norms, out=np.zeros_like(d), where=norms > 0)
    mean = (w * phi).sum(0) / w.sum()
    merged: NDArray[np.float64] = (w * norms).sum() / w.sum() * mean / np.linalg.norm(mean)
    return merged


deltas_of_20 = st.lists(nps.arrays(np.float32, 20, elements=st.floats(-100, 100, width=16)), min_size=2, max_size=6)
weights_of = st.floats(0.01, 100)


def test_every_method_has_a_rule() -> None:
    assert set(merging.RULES) == set(get_args(MergeMethod))


@pytest.mark.slow
@pytest.mark.usefixtures("level")
@settings(max_examples=examples(40))
@given(deltas_of_20, st.data())
def test_rda_is_the_formula(deltas: list[NDArray[np.float32]], data: st.DataObject) -> None:
    weights = [data.draw(weights_of) for _ in deltas]
    norms = [np.linalg.norm(d) for d in deltas]
    assume(max(norms) > 0)
    directions = sum(w * d / n for w, d, n in zip(weights, deltas, norms, strict=True) if n > 0) / sum(weights)
    assume(np.linalg.norm(directions) > 0.01)  # where they cancel is another test
    merged = merge(fragment_of(20), deltas, weights, "RDA", "Average")
    expected = reference_rda(deltas, weights)
    assert np.allclose(merged, expected, rtol=1e-3, atol=1e-4 * np.linalg.norm(expected))


@pytest.mark.slow
@pytest.mark.usefixtures("level")
@settings(max_examples=examples(40))
@given(deltas_of_20, st.data())
def test_weighted_average_is_the_formula(deltas: list[NDArray[np.float32]], data: st.DataObject) -> None:
    weights = [data.draw(weights_of) for _ in deltas]
    merged = merge(fragment_of(20), deltas, weights, "Average", "Average")
    expected = np.average(np.stack(deltas).astype(float), axis=0, weights=weights)
    assert np.allclose(merged, expected, rtol=1e-4, atol=1e-4)


@given(nps.arrays(np.float32, 20, elements=st.floats(-1e6, 1e6, width=32)), weights_of, st.sampled_from(get_args(MergeMethod)))
def test_one_learner_is_the_identity(delta: NDArray[np.float32], w: float, method: MergeMethod) -> None:
    assert merge(fragment_of(12, 8), [delta], [w], method, method).tobytes() == delta.tobytes()


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(deltas_of_20, st.data())
def test_equal_norms_in_give_that_norm_out(deltas: list[NDArray[np.float32]], data: st.DataObject) -> None:
    assume(all(np.linalg.norm(d) > 1e-3 for d in deltas))
    radius = data.draw(st.floats(0.01, 1000))
    deltas = [(d / np.linalg.norm(d) * radius).astype(np.float32) for d in deltas]
    weights = [data.draw(weights_of) for _ in deltas]
    assume(np.linalg.norm(np.average(deltas, axis=0, weights=weights)) > 0.01 * radius)
    assert np.linalg.norm(merge(fragment_of(20), deltas, weights, "RDA", "Average")) == pytest.approx(radius, rel=1e-4)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(deltas_of_20, st.data(), st.sampled_from(get_args(MergeMethod)))
def test_only_ratios_of_weights_count(deltas: list[NDArray[np.float32]], data: st.DataObject, method: MergeMethod) -> None:
    weights = [data.draw(weights_of) for _ in deltas]
    a = merge(fragment_of(20), deltas, weights, method, method)
    b = merge(fragment_of(20), deltas, [1024 * w for w in weights], method, method)  # a power of two: not even rounding differs
    assert a.tobytes() == b.tobytes()


def test_rda_by_hand() -> None:
    # Norms 3 and 1, weights 1 and 3: radius (1*3 + 3*1)/4 = 1.5. Directions (1,0) and (0,1): mean (0.25, 0.75), phi = (1,3)/sqrt(10).
    merged = merge(fragment_of(2), [vector(3, 0), vector(0, 1)], [1, 3], "RDA", "Average")
    assert merged == pytest.approx(1.5 * np.array([1, 3]) / np.sqrt(10), rel=1e-6)


def test_norm_does_not_shrink_with_the_number_of_orthogonal_learners() -> None:
    deltas = [2 * row for row in np.eye(16, dtype=np.float32)]
    assert np.linalg.norm(merge(fragment_of(16), deltas, [1.0] * 16, "RDA", "Average")) == pytest.approx(2)
    assert np.linalg.norm(merge(fragment_of(16), deltas, [1.0] * 16, "Average", "Average")) == pytest.approx(2 / 4)  # 2/sqrt(16)


def test_tensors_are_merged_one_by_one() -> None:
    # In tensor w0 both agree; in w1 they are orthogonal. A merge over the whole vector would mix the two norms.
    merged = merge(fragment_of(1, 2), [vector(5, 1, 0), vector(5, 0, 1)], [1, 1], "RDA", "Average")
    assert merged == pytest.approx(np.array([5, np.sqrt(0.5), np.sqrt(0.5)]), rel=1e-6)


def test_embeddings_have_their_own_method() -> None:
    deltas = [vector(1, 0, 1, 0), vector(0, 1, 0, 1)]
    merged = merge(fragment_of(2, 2, embeddings={1}), deltas, [1, 1], "RDA", "Average")
    assert merged == pytest.approx(np.array([np.sqrt(0.5), np.sqrt(0.5), 0.5, 0.5]), rel=1e-6)


def test_directions_that_cancel_fall_back_to_the_direct_average() -> None:
    merged = merge(fragment_of(2), [vector(3, 0), vector(-1, 0)], [1, 1], "RDA", "Average")
    assert merged.tolist() == [1, 0]  # (3 - 1) / 2


def test_a_zero_gradient_has_no_direction_but_counts_in_the_radius() -> None:
    # radius (1*4 + 1*0)/2 = 2 along the only direction there is
    assert merge(fragment_of(2), [vector(4, 0), vector(0, 0)], [1, 1], "RDA", "Average").tolist() == [2, 0]
    assert merge(fragment_of(2), [vector(0, 0), vector(0, 0)], [1, 1], "RDA", "Average").tolist() == [0, 0]


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e25])
def test_tiny_and_huge_gradients_keep_direction_and_norm(scale: float) -> None:
    # squares leave float32's range in both directions
    merged = merge(fragment_of(2), [vector(3 * scale, 0), vector(0, 3 * scale)], [1, 1], "RDA", "Average")
    assert merged == pytest.approx(np.full(2, 3 * scale * np.sqrt(0.5)), rel=1e-5)


@pytest.mark.parametrize("x", [vector(-3e25, -4e25), vector(-3e-25, -4e-25), vector(-3e25, 4e25)])
def test_norm_outside_of_float32_does_not_depend_on_signs(x: NDArray[np.float32]) -> None:
    assert norm(x) == pytest.approx(np.linalg.norm(x.astype(float)), rel=1e-6)


@pytest.mark.parametrize("n", [1, 17, 2049, 98309])
def test_norm_and_sums_over_several_chunks(n: int) -> None:
    rng = np.random.default_rng(n)
    deltas = [rng.standard_normal(n, dtype=np.float32) + 0.5 for _ in range(3)]
    assert norm(deltas[0]) == pytest.approx(np.linalg.norm(deltas[0].astype(float)), rel=1e-6)
    assert np.allclose(merge(fragment_of(n), deltas, [1, 2, 3], "RDA", "RDA"), reference_rda(deltas, [1, 2, 3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("deltas", "weights"), [([], []), ([vector(1)], [0.0]), ([vector(1)], [float("inf")]), ([vector(1)], [1, 2])])
def test_nothing_to_merge_is_an_error(deltas: list[NDArray[np.float32]], weights: list[float]) -> None:
    with pytest.raises(ValueError):
        merge(fragment_of(1), deltas, weights, "RDA", "Average")


def test_scalars_and_vectors_are_averaged_under_rda_too() -> None:
    # RDA of the scalar would be 2.5, its radius with the sign that has the larger weight.
    layout = Layout([TensorSpec("bias", (2,), False), TensorSpec("matrix", (1, 2), False), TensorSpec("scale", (), False)])
    (fragment,) = make_fragments(layout, 1)
    assert [x.name for x in fragment.tensors] == ["bias", "matrix", "scale"]
    merged = merge(fragment, [vector(3, 0, 3, 0, 3), vector(0, 1, 0, 1, -1)], [3, 1], "RDA", "RDA")
    assert merged[:2].tolist() == [9 / 4, 1 / 4]
    # radius (3*3 + 1*1)/4 = 2.5 along (3, 1)/sqrt(10)
    assert merged[2:4] == pytest.approx(2.5 * np.array([3, 1]) / np.sqrt(10), rel=1e-6)
    assert merged[4:].tolist() == [2]  # (3*3 - 1)/4


@pytest.mark.parametrize("tiny", [1e-45, 1e-42, 1.2e-38, 1e-33])
@pytest.mark.parametrize("others", [1e-42, 1.0, 1e38])
def test_a_gradient_near_the_end_of_float32_has_a_direction_as_every_other(tiny: float, others: float) -> None:
    # Norms `tiny` and `others` at right angles, equal weights: radius (tiny + others)/2 along (1, 1)/sqrt(2).
    a, b = vector(tiny, 0), vector(0, others)
    radius = (float(a[0]) + float(b[1])) / 2
    merged = merge(fragment_of(2), [a, b], [1, 1], "RDA", "Average")
    # float32 is evenly spaced below 1.2e-38, by 1.4e-45: results there are rounded to that.
    assert merged.astype(float) == pytest.approx(np.full(2, radius * np.sqrt(0.5)), rel=1e-6, abs=2e-45)


def test_norms_are_those_of_the_tensors_in_order() -> None:
    # 3-4-5, 5-12-13
    assert norms(fragment_of(2, 1, 2), vector(3, 4, 0, -5, 12)) == pytest.approx((5, 0, 13))


def test_a_contribution_without_its_norms_is_an_error() -> None:
    d, fragment = vector(1, 2), fragment_of(1, 1)
    with pytest.raises(ValueError, match="1 lists of norms"):
        merging.merge(fragment, [Vector.of_values(d), Vector.of_values(d)], [(1.0, 2.0)], [1, 1], "RDA", "RDA")
    with pytest.raises(ValueError, match=r"\[2, 1\] norms, fragment 0 has 2 parts"):
        merging.merge(fragment, [Vector.of_values(d), Vector.of_values(d)], [(1.0, 2.0), (1.0,)], [1, 1], "RDA", "RDA")


def a_stack(axes: int, *shape: int) -> Fragment:
    (fragment,) = make_fragments(Layout([TensorSpec("experts", shape, stack_axes=axes)]), 1)
    return fragment


@pytest.mark.parametrize(("axes", "shape"), [(1, (3, 64, 64)), (2, (1, 3, 64, 64)), (2, (3, 1, 8, 512))])
def test_each_matrix_of_a_stack_has_a_radius_and_a_direction_of_its_own(axes: int, shape: tuple[int, ...]) -> None:
    """Three experts of 4096 values; each unit has moved another one far, as its router chose it."""
    random = np.random.default_rng(1)
    deltas = [np.concatenate([random.standard_normal(4096) * (10.0 if i == unit else 0.1) for i in range(3)]) for unit in range(3)]
    deltas = [delta.astype(np.float32) for delta in deltas]
    weights = [1.0, 2.0, 3.0]
    merged = merge(a_stack(axes, *shape), deltas, weights, "RDA", "Average")
    for expert in range(3):
        where = slice(4096 * expert, 4096 * (expert + 1))
        assert np.allclose(merged[where], reference_rda([delta[where] for delta in deltas], weights), rtol=1e-3, atol=1e-4)
    whole = merge(a_stack(0, *shape), deltas, weights, "RDA", "Average")
    assert np.allclose(whole, reference_rda(deltas, weights), rtol=1e-3, atol=1e-4)
    # The norms of the experts are then those that the units' weights say, 10 times as 3 to 1; with one norm for all they are mixed.
    radii = [np.linalg.norm(merged[4096 * i : 4096 * (i + 1)]) for i in range(3)]
    mixed = [np.linalg.norm(whole[4096 * i : 4096 * (i + 1)]) for i in range(3)]
    expected = [64 * (weights[i] * 10.0 + (6.0 - weights[i]) * 0.1) / 6.0 for i in range(3)]
    assert radii == pytest.approx(expected, rel=0.03)
    assert mixed != pytest.approx(expected, rel=0.3)


@pytest.mark.parametrize("shape", [(64, 8, 512), (768, 12, 64), (256, 128, 33), (3, 3, 64, 64), (8192,)])
def test_what_is_no_stack_has_one_radius_whatever_its_shape(shape: tuple[int, ...]) -> None:
    """Attention kernels [embed, heads, head] of flax, kernels of convolutions."""
    (fragment,) = make_fragments(Layout([TensorSpec("w", shape)]), 1)
    assert norms(fragment, np.ones(fragment.size, np.float32)) == pytest.approx([fragment.size**0.5])


def test_the_number_of_norms_is_that_of_the_matrices() -> None:
    assert norms(a_stack(1, 5, 64, 64), np.ones(5 * 4096, np.float32)) == (64.0,) * 5
    assert norms(a_stack(2, 2, 3, 2, 2), np.ones(24, np.float32)) == (2.0,) * 6


@pytest.mark.parametrize(("axes", "shape"), [(1, (2, 2)), (2, (1, 2, 2)), (2, (2, 2))])
def test_a_stack_of_biases_is_averaged_as_biases_are(axes: int, shape: tuple[int, ...]) -> None:
    # As RDA of a matrix it would be 2.5 along (3, 0, 0, 1)/sqrt(10).
    merged = merge(a_stack(axes, *shape), [vector(3, 0, 0, 0), vector(0, 0, 0, 1)], [3, 1], "RDA", "RDA")
    assert merged.tolist() == [9 / 4, 0, 0, 1 / 4]


@pytest.mark.parametrize("compression", ["None", "BFloat16", "Int4"])
def test_a_job_merges_a_stack_as_its_matrices_would_be_alone(compression: str) -> None:
    """Through the core, from the coded answers of units that moved one expert each; int4's blocks of 256 are those of the experts."""
    random = np.random.default_rng(2)
    moved = [[random.standard_normal((16, 32), dtype=np.float32) * (1.0 if unit == i else 0.01) for i in range(2)] for unit in range(2)]
    job = a_job(
        sync_interval=1, fragments=1, overlap_steps=0, compression=compression, quorum=2, merge={"method": "RDA", "embeddings": "RDA"}
    )
    whole = _merged(Layout([TensorSpec("experts", (2, 16, 32), stack_axes=1)]), job, [np.stack(of) for of in moved])
    alone = _merged(Layout([TensorSpec(f"expert{i}", (16, 32)) for i in range(2)]), job, [np.stack(of) for of in moved])
    assert whole.tobytes() == alone.tobytes()
    assert whole.tobytes() != _merged(Layout([TensorSpec("experts", (2, 16, 32))]), job, [np.stack(of) for of in moved]).tobytes()


def _merged(layout: Layout, training: Training, answers: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The only fragment after one merge of these answers."""
    units = {f"u{i}": answer.reshape(-1) for i, answer in enumerate(answers)}
    core = a_seeded_core(training, layout, units)
    for unit in units:
        core.progress(unit, metadata(core, 1), 1.0)
    [pull] = [action for action in core.advance(1.0) if isinstance(action, Pull)]
    for unit, answer in units.items():
        assert core.push(unit, a_push(core, pull, payload=codec.encode(core.coding, answer)), 1.0) is None
    core.advance(1.0)
    assert core.version(0) == pull.t
    return core.value(0)


def cosine(fragment: Fragment, deltas: list[NDArray[np.float32]], weights: list[float], method: MergeMethod) -> float:
    return merging.merge(fragment, *plain(fragment, deltas), weights, method, method).cosine


@pytest.mark.parametrize("method", ["RDA", "Average"])
def test_mean_cosine_is_that_of_the_pairs(method: MergeMethod) -> None:
    # Directions of 0, 60 and 90 degrees and of unlike lengths. Cosines of the pairs: 1/2, 0 and sqrt(3)/2.
    deltas = [vector(2.0, 0.0), vector(0.5, math.sqrt(0.75)), vector(0.0, 3.0)]
    pairs = {(0, 1): 0.5, (0, 2): 0.0, (1, 2): math.sqrt(0.75)}
    weights, lengths = [1.0, 2.0, 4.0], [2.0, 1.0, 3.0]
    # RDA adds directions; the average adds vectors, so that pairs count by their lengths, too.
    share = weights if method == "RDA" else [w * n for w, n in zip(weights, lengths, strict=True)]
    products = {pair: share[pair[0]] * share[pair[1]] for pair in pairs}
    expected = sum(products[pair] * pairs[pair] for pair in pairs) / sum(products.values())
    assert cosine(fragment_of(2), deltas, weights, method) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", ["RDA", "Average"])
def test_mean_cosine_of_equal_opposite_and_single_contributions(method: MergeMethod) -> None:
    one, zero = vector(1.0, 2.0), vector(0.0, 0.0)
    assert cosine(fragment_of(2), [one, one], [1.0, 5.0], method) == pytest.approx(1.0)
    assert cosine(fragment_of(2), [one, -one], [1.0, 1.0], method) == pytest.approx(-1.0)
    assert math.isnan(cosine(fragment_of(2), [one], [1.0], method))
    assert math.isnan(cosine(fragment_of(2), [one, zero], [1.0, 1.0], method))


def test_mean_cosine_weighs_matrices_by_their_sizes() -> None:
    # In the first two values equal directions, in the other six opposite ones.
    first, second = vector(1, 0, 1, 0, 0, 0, 0, 0), vector(1, 0, -1, 0, 0, 0, 0, 0)
    assert cosine(fragment_of(2, 6), [first, second], [1.0, 1.0], "RDA") == pytest.approx((2 * 1.0 + 6 * -1.0) / 8)
