import math

import numpy as np
import pytest
from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, TensorSpec
from diloco.trainers.byte_lm import EMBEDDINGS, ModelConfig, initial_parameters, is_decayed, parameter_shapes
from diloco.trainers.inner_optimizer import InnerConfig


def test_the_default_model_has_a_tensor_for_each_of_24_fragments() -> None:
    shapes = parameter_shapes(ModelConfig())
    layout = Layout(TensorSpec(name, shape, name in EMBEDDINGS) for name, shape in shapes.items())
    fragments = make_fragments(layout, 24)
    assert len(fragments) == 24
    # 2 x (4 x 128^2 + 3 x 128 x 344 + 4 x 128) + 2 x 256 x 128 + 128 x 128 + 2 x 128 = 478,464.
    assert layout.size == 478_464


def test_equal_seeds_are_equal_parameters_and_other_seeds_are_not() -> None:
    config = ModelConfig(layers=1, width=8, heads=2, context=4)
    first, again, other = initial_parameters(config, 1), initial_parameters(config, 1), initial_parameters(config, 2)
    assert {name: value.shape for name, value in first.items()} == parameter_shapes(config)
    for name, value in first.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, again[name])
    assert not np.array_equal(first["embedding"], other["embedding"])


def test_matrices_start_with_the_deviation_that_their_place_asks_for() -> None:
    values = initial_parameters(ModelConfig(layers=2, width=128), 0)
    # The deviation of n normal values is known to about 1/sqrt(2n): 0.6 % for the smallest of these, with 16,384.
    assert np.std(values["block.0.query"]) == pytest.approx(1 / math.sqrt(128), rel=0.03)
    assert np.std(values["block.1.out"]) == pytest.approx(1 / math.sqrt(128) / 2, rel=0.03)
    assert np.std(values["embedding"]) == pytest.approx(0.02, rel=0.03)
    assert not values["head"].any()


def test_weight_decay_spares_embeddings_norms_and_biases() -> None:
    decayed = {name for name in parameter_shapes(ModelConfig(layers=1)) if is_decayed(name)}
    assert decayed == {f"block.0.{name}" for name in ("query", "key", "value", "out", "gate", "up", "down")} | {"head"}


def test_the_rate_warms_up_with_local_steps_and_anneals_with_the_job() -> None:
    inner = InnerConfig(learning_rate=1.0, warmup=10, final_share=0.1)
    assert inner.rate(1, 0.0) == pytest.approx(0.1)
    assert inner.rate(10, 0.0) == pytest.approx(1.0)
    assert inner.rate(1000, 0.5) == pytest.approx(0.55)  # halfway down from 1 to 0.1
    assert inner.rate(1000, 1.0) == pytest.approx(0.1)
    assert inner.rate(1, 0.5) == pytest.approx(0.055)  # a unit that came late warms up to the job's rate
    assert inner.rate(1000, 1.2) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("wrong", "says"), [({"heads": 3}, "does not split"), ({"layers": 0}, "layers must be"), ({"context": 0}, "context must")]
)
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ModelConfig(**wrong)  # type: ignore[arg-type]
